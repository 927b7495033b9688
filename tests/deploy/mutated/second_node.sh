export GLOO_SOCKET_IFNAME=ens9f0 NCCL_SOCKET_IFNAME=ens9f0
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3-0324 \
    --host 10.60.2.2 --port 30000 \
    --tp-size 16 \
    --nnodes 2 --node-rank 1 \
    --dist-init-addr 10.60.2.1:20000 \
    --page-size 64 \
    --max-running-requests 64 --cuda-graph-max-bs 64 \
    --mem-fraction-static 0.85
