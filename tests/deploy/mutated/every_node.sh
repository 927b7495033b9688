#!/bin/bash
# Start this on both nodes: a coder model over 32 devices.
NODES=(172.30.5.11 172.30.5.12)
WEIGHTS=/srv/coder-480b-w8a8
MY_IP=$(hostname -I | cut -d' ' -f1)
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export HCCL_BUFFSIZE=2100
export HCCL_SOCKET_IFNAME=bond0
export GLOO_SOCKET_IFNAME=bond0
unset http_proxy https_proxy

for rank in "${!NODES[@]}"; do
    if [[ "$MY_IP" == "${NODES[$rank]}" ]]; then
        python3 -m sglang.launch_server \
            --model-path $WEIGHTS \
            --device npu --attention-backend ascend --quantization modelslim \
            --host ${NODES[$rank]} --port 6700 \
            --nnodes ${#NODES[@]} \
            --node-rank $rank \
            --dist-init-addr ${NODES[0]}:5100 \
            --tp-size 32 --dp-size 4 --enable-dp-attention \
            --moe-a2a-backend deepep --deepep-mode auto \
            --max-running-requests 128 \
            --cuda-graph-bs 1 2 4 8 16 32 \
            --chunked-prefill-size 16384 \
            --mem-fraction-static 0.75
    fi
done
