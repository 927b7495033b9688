NODES=('10.2.0.1' '10.2.0.2')
ME=`hostname -I|awk -F " " '{print$1}'`
for i in "${!NODES[@]}"; do
  if [ "$ME" == "${NODES[$i]}" ]; then
    RANK=$i
    break
  fi
done
CARDS=('eth2' 'eth3')
export HCCL_SOCKET_IFNAME=${CARDS[$RANK]}
export GLOO_SOCKET_IFNAME=${HCCL_SOCKET_IFNAME}
count=${#NODES[@]}
python3 -m sglang.launch_server --model-path /models/Qwen3-Coder-480B-W8A8 --tp `expr 16 \* $count` --dp 4 \
  --enable-dp-attention --nnodes $count --node-rank $RANK --dist-init-addr ${NODES[0]}:10000 \
  --host ${NODES[$RANK]} --port 8000 --device npu --attention-backend ascend --moe-a2a-backend deepep \
  --quantization modelslim --max-running-requests 288 --cuda-graph-bs 56 64 72
