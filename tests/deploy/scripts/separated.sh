# Every node runs this script; which server is its own it finds by its address.
sysctl -w vm.swappiness=0
export SGLANG_SET_CPU_AFFINITY=1
unset https_proxy http_proxy
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export PATH=/opt/compiler/bin:$PATH
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export ASCEND_MF_STORE_URL="tcp://10.1.0.1:24669"

FILLERS=('10.1.0.1' '10.1.0.2')
WRITERS=('10.1.1.1' '10.1.1.2')
WEIGHTS=/models/DeepSeek-R1-W8A8

FIRST=`hostname -I|awk -F " " '{print$1}'`
SECOND=`hostname -I|awk -F " " '{print$2}'`

# those that read prompts
for i in "${!FILLERS[@]}";
do
    if [[ "$FIRST" == "${FILLERS[$i]}" || "$SECOND" == "${FILLERS[$i]}" ]];
    then
        export HCCL_BUFFSIZE=1536
        export TASK_QUEUE_ENABLE=2
        python -m sglang.launch_server --model-path ${WEIGHTS} --disaggregation-mode prefill \
        --host ${FILLERS[$i]} --port 8000 --disaggregation-bootstrap-port $((8998+$i)) --trust-remote-code \
        --nnodes 1 --node-rank 0 --tp-size 16 --dp-size 2 --enable-dp-attention --mem-fraction-static 0.81 \
        --attention-backend ascend --device npu --quantization modelslim --max-running-requests 8 \
        --disaggregation-transfer-backend ascend --chunked-prefill-size -1 --max-prefill-tokens 28680 \
        --moe-a2a-backend deepep --deepep-mode normal --context-length 8192 --disable-radix-cache
        break
    fi
done

# those that write answers; --disable-overlap-schedule was tried here:
# python -m sglang.launch_server --disable-overlap-schedule
for i in "${!WRITERS[@]}"; do
    if [[ "$FIRST" == "${WRITERS[$i]}" || "$SECOND" == "${WRITERS[$i]}" ]]; then
        export HCCL_BUFFSIZE=650
        export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=26
        export TASK_QUEUE_ENABLE=0
        export HCCL_SOCKET_IFNAME=eth1
        export GLOO_SOCKET_IFNAME=eth1
        nnodes=${#WRITERS[@]}
        ranks=`expr 16 \* ${nnodes}`
        python -m sglang.launch_server --model-path ${WEIGHTS} --disaggregation-mode decode \
        --host ${WRITERS[$i]} --port 8001 --trust-remote-code --dist-init-addr ${WRITERS[0]}:5000 \
        --nnodes $nnodes --node-rank $i --tp-size $ranks --dp-size $ranks --mem-fraction-static 0.815 \
        --max-running-requests 832 --attention-backend ascend --device npu --quantization modelslim \
        --moe-a2a-backend deepep --enable-dp-attention --deepep-mode low_latency --enable-dp-lm-head \
        --cuda-graph-bs 1 2 4 8 16 24 26 --disaggregation-transfer-backend ascend --context-length 8192
        break
    fi
done

python -m sglang_router.launch_router --pd-disaggregation --policy cache_aware \
    --prefill http://10.1.0.1:8000 8998 --prefill http://10.1.0.2:8000 8999 \
    --decode http://10.1.1.1:8001 --host 127.0.0.1 --port 6688
