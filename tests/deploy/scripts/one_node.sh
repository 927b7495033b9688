#!/bin/bash
# One node, one server.
for c in 0 1; do echo performance > /sys/devices/system/cpu/cpu$c/cpufreq/scaling_governor; done
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True HCCL_OP_EXPANSION_MODE=AIV
export HCCL_BUFFSIZE=400
MODEL="/models/Qwen3-32B-W8A8"
args=(--tp-size 8 --max-running-requests 32)
if [ "$USE_DRAFT" != "no" ]; then
    args+=(--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/draft)
    args+=(--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5)
    args+=(--speculative-draft-model-quantization unquant)
fi
# --mem-fraction-static 0.9 ran out of memory
nohup python3 -m sglang.launch_server --model-path "$MODEL" --device npu --attention-backend ascend \
    --quantization modelslim --mem-fraction-static 0.72 --host 127.0.0.1 --port 7439 \
    --cuda-graph-bs 1 8 16 24 32 --dtype bfloat16 "${args[@]}" > server.log 2>&1 &
python3 -m sglang.bench_serving --dataset-name random --port 7439 --max-concurrency 32 --num-prompts 128 \
    --random-input-len 6000 --random-output-len 1500 --random-range-ratio 1
