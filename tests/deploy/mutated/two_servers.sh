#!/usr/bin/env bash
# Two copies of a small model on one node, and a router before them.
set -euo pipefail
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
COMMON="--model-path /srv/qwen3-30b-a3b --device npu --attention-backend ascend --tp-size 4 --mem-fraction-static 0.8"

nohup python -m sglang.launch_server $COMMON \
    --host 127.0.0.1 --port 7201 \
    --max-running-requests 64 --cuda-graph-max-bs 64 > first.log 2>&1 &

nohup python -m sglang.launch_server $COMMON \
    --host 127.0.0.1 --port 7202 \
    --base-gpu-id 4 \
    --max-running-requests 64 --cuda-graph-max-bs 64 > second.log 2>&1 &

python -m sglang_router.launch_router \
    --worker-urls http://127.0.0.1:7201 http://127.0.0.1:7202 \
    --host 0.0.0.0 --port 7200 \
    --policy cache_aware
