#!/bin/bash
# One box of eight GPUs, weights in FP8.
export SGLANG_ENABLE_TORCH_COMPILE=0
export NCCL_DEBUG=WARN
python -m sglang.launch_server \
    --model-path Qwen/Qwen3-235B-A22B-FP8 \
    --served-model-name qwen \
    --tp-size 8 \
    --ep-size 8 \
    --attention-backend fa3 \
    --kv-cache-dtype fp8_e4m3 \
    --mem-fraction-static 0.85 \
    --max-running-requests 128 \
    --chunked-prefill-size 8192 \
    --context-length 32768 \
    --host 0.0.0.0 --port 30000
