"""What SGLang's documentation says its flags do on Ascend; what it does not name works."""

from __future__ import annotations

GPU_ONLY = """
quantization-param-path modelopt-quant modelopt-checkpoint-restore-path
modelopt-checkpoint-save-path modelopt-export-path quantize-and-serve rl-quant-profile
kv-events-config max-lora-chunk-size nsa-prefill-backend nsa-decode-backend fp8-gemm-backend
disable-flashinfer-autotune speculative-accept-threshold-single speculative-accept-threshold-acc
flashinfer-mxfp4-moe-precision enable-flashinfer-allreduce-fusion deepep-config
elastic-ep-backend mooncake-ib-device hicache-storage-prefetch-policy
hicache-storage-backend-extra-config enable-lmcache enable-nccl-nvls enable-symm-mem
disable-flashinfer-cutlass-moe-fp4-allgather enable-mscclpp enable-torch-symm-mem torchao-config
enable-p2p-check triton-attention-reduce-in-fp32 triton-attention-num-kv-splits
triton-attention-split-tile-size flashinfer-mla-disable-ragged enable-layerwise-nvtx-marker
enable-fused-qk-norm-rope disaggregation-ib-device
remote-instance-weight-loader-start-seed-via-transfer-engine enable-pdmux pdmux-config-path
sm-group-num
""".split()
PLANNED = """
enable-two-batch-overlap tbo-token-distribution-threshold rl-on-policy-target
enable-deterministic-inference
""".split()
EXPERIMENTAL = """
speculative-ngram-min-match-window-size speculative-ngram-max-match-window-size
speculative-ngram-min-bfs-breadth speculative-ngram-max-bfs-breadth speculative-ngram-match-type
speculative-ngram-branch-length speculative-ngram-capacity enable-attn-tp-input-scattered
""".split()
DEFICIENT = """
kt-weight-path kt-method kt-cpuinfer kt-threadpool-count kt-num-gpu-experts
kt-max-deferred-experts-per-token enable-double-sparsity ds-channel-config-path
ds-heavy-channel-num ds-heavy-token-num ds-heavy-channel-type ds-sparse-decode-threshold tool-server
checkpoint-engine-wait-weights-before-ready
""".split()
STATES = {
    **dict.fromkeys(GPU_ONLY, "is for GPUs only"),
    **dict.fromkeys(PLANNED, "is planned for Ascend and does not work there yet"),
    **dict.fromkeys(DEFICIENT, "does not work fully on Ascend"),
}
VALUES = {
    "load_format": ("auto", "safetensors", "dummy"),
    "dtype": ("auto", "float16", "bfloat16", "half"),
    "quantization": ("modelslim",),
    "kv_cache_dtype": ("auto",),
    "schedule_policy": ("lpm", "fcfs"),
    "attention_backend": ("ascend",),
    "prefill_attention_backend": ("ascend",),
    "decode_attention_backend": ("ascend",),
    "sampling_backend": ("pytorch", "ascend"),
    "grammar_backend": ("xgrammar", "none"),
    "mm_attention_backend": ("ascend_attn",),
    "lora_backend": ("triton",),
    "speculative_algorithm": ("EAGLE3", "NEXTN", "EAGLE"),
    "speculative_draft_attention_backend": ("ascend",),
    "speculative_draft_model_quantization": ("unquant",),
    "moe_a2a_backend": ("none", "deepep", "ascend_fuseep"),
    "moe_runner_backend": ("auto", "triton"),
    "disaggregation_transfer_backend": ("ascend",),
    "hicache_io_backend": ("kernel_ascend", "direct"),
    "hicache_mem_layout": ("page_first_direct", "page_first_kv_split"),
    "hicache_storage_backend": ("file",),
    "radix_eviction_policy": ("lru", "lfu"),
}
"""option -> the values that are documented for Ascend"""
