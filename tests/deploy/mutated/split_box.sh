#!/bin/bash
# One box of eight GPUs: four read prompts, four write answers.
MODEL=/srv/qwen3-32b
python3 -m sglang.launch_server --model-path $MODEL --tp-size 4 \
    --disaggregation-mode prefill \
    --disaggregation-bootstrap-port 9100 \
    --disaggregation-ib-device mlx5_0 \
    --host 127.0.0.1 --port 7401 &
CUDA_VISIBLE_DEVICES=4,5,6,7 \
python3 -m sglang.launch_server --model-path $MODEL --tp-size 4 \
    --disaggregation-mode decode \
    --disaggregation-ib-device mlx5_0 \
    --max-running-requests 64 --cuda-graph-max-bs 64 \
    --host 127.0.0.1 --port 7402 &
python3 -m sglang_router.launch_router --pd-disaggregation \
    --prefill http://127.0.0.1:7401 9100 \
    --decode http://127.0.0.1:7402 \
    --host 0.0.0.0 --port 7400
python3 -m sglang.bench_serving --backend sglang --port 7400 \
    --dataset-name random --random-range-ratio 1 \
    --random-input-len 4096 --random-output-len 512 \
    --max-concurrency 32 --num-prompts 320
