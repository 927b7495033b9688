#!/bin/bash
# A mixture of experts over the sixteen devices of a node.
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export STREAMS_PER_DEVICE=32
export HCCL_BUFFSIZE=800
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=16

python -m sglang.launch_server \
    --model-path /srv/qwen3-30b-a3b \
    --device npu --attention-backend ascend \
    --host 127.0.0.1 --port 6810 \
    --tp-size 16 \
    --dp-size 16 \
    --enable-dp-attention \
    --moe-a2a-backend deepep --deepep-mode auto \
    --max-running-requests 256 \
    --cuda-graph-bs 1 2 4 8 16 \
    --context-length 8192 \
    --mem-fraction-static 0.7
