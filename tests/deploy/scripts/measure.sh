python -m sglang.bench_serving --dataset-name random --backend sglang --host 127.0.0.1 --port 6688 \
    --max-concurrency 832 --random-input-len 3500 --random-output-len 1500 --num-prompts 3328 --random-range-ratio 1
