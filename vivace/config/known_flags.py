"""Flags that Vivace knows by name only: of SGLang 0.5.23, and of other engines."""

from __future__ import annotations

NEWER = frozenset(
    f"--{name}"
    for name in """
allowed-media-domains asr-max-buffer-seconds asr-max-concurrent-sessions
attention-data-parallel-size attn-dp-size batch-notify-size bf16-gemm-backend boundary-reduction
c128-page-size constrained-json-max-whitespace-cnt context-bucket cuda-graph-backend-decode
cuda-graph-backend-prefill cuda-graph-config cuda-graph-max-seq-len-prefill
cuda-graph-prefill-max-context dcp-comm-backend dcp-replicate-q-proj dcp-size debug-cuda-graph
decode-context-parallel-size decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints
decoupled-spec-rank decoupled-spec-role deepep-dispatcher-output-dtype deepep-v2-mode
default-chat-template-kwargs default-priority-value detokenizer-worker-num
disable-aiter-allreduce-fusion-in-decode disable-aiter-allreduce-fusion-in-prefill
disable-attn-tp-gather disable-decode-cuda-graph disable-prefill-cuda-graph
disable-priority-preemption disaggregation-decode-allocation-policy
disaggregation-decode-enable-radix-cache disaggregation-decode-extra-slots
disaggregation-decode-host-receive-threshold disaggregation-decode-retraction-backup
disaggregation-enable-kv-checksum dllm-fdfo dsa-paged-mqa-logits-backend dsa-topk-backend
dsa-triton-union dsv4-attn-backend dsv4-prefill-backend dwdp-size elastic-ep-initial-size
elastic-ep-join-mode elastic-ep-join-rank-offset elastic-ep-scale-timeout
enable-adaptive-dispatch-to-encoder enable-aiter-allreduce-fusion enable-amd-monokernel
enable-cp-decode-attn-tp enable-decoder-swa-bounded-replay enable-deepseek-v4-fp4-indexer
enable-dense-mlp-attn-tp enable-dp-attention-local-control-broadcast
enable-dsa-cache-layer-split enable-dsa-fused-indexer enable-elastic-expert-backup
enable-encoder-swa-bounded-replay enable-flexkv enable-forward-pass-metrics
enable-fused-moe-sum-all-reduce enable-hisparse enable-http-worker-reuseport enable-http2
enable-int8-mamba-checkpoint enable-kv-cache-sharding enable-layernorm-sp enable-lean-attention
enable-linear-replayssm enable-linear-replayssm-spec enable-linker-mla-dedup
enable-mamba-cache-stochastic-rounding enable-megamoe-for-layernorm-sp enable-mfu-metrics
enable-mis enable-mm-global-cache enable-nvidia-megakernel enable-page-major-kv-layout
enable-paged-experts enable-pd-role-switch enable-quant-communications enable-response-store
enable-return-aux-hidden-states enable-return-indexer-topk enable-scattered-sconv
enable-session-radix-cache enable-shared-experts-attn-tp enable-ssl-refresh
enable-streaming-session enable-strict-thinking enable-tf32-matmul enable-tp-lm-head-all-to-all
enable-unified-cache-external-linker enable-unified-memory enable-w4a4-mxfp4-megamoe
enable-waterfill enable-watermark encoder-bootstrap-port encoder-register-urls
enforce-disable-flashinfer-allreduce-fusion enforce-shared-experts-fusion
engine-info-bootstrap-port expert-balancedness-report-mode experts-shared-outer-loras
extra-metric-labels flashinfer-a2a-dispatch-type flashinfer-allreduce-fusion-backend
flashinfer-autotune-skip-ops flexkv-config-file forward-pass-metrics-ipc-name
forward-pass-metrics-worker-id fuseep-mode gated-launch-port gc-threshold grpc-http-sidecar-port
grpc-port grpc-response-timeout-secs hicache-host-memory-fraction hicache-host-memory-mode
hicache-storage-prefetch-retry-max-attempts hicache-storage-prefetch-retry-poll-interval
hisparse-config http2-initial-connection-window-size http2-max-concurrent-streams
image-processor-backend int8-mamba-ckpt-size kv-canary kv-canary-sweep-interval
language-model-only linear-attn-backend linear-attn-decode-backend linear-attn-prefill-backend
linear-attn-verify-backend linear-replayssm-cache-len lmcache-config-file load-publish-endpoint
load-snapshot-publish-interval lora-drain-wait-threshold lora-strict-loading
lora-use-virtual-experts mamba-backend mamba-cache-philox-rounds mamba-max-states-per-path
max-ep-size media-url-max-file-size-mb min-free-slots-delay mlx-enable-sampling
mm-feature-transport mm-global-cache-backend mm-io-worker-num mm-preprocess-cache-size-mb
mm-processor-worker-num model-config-parser modelexpress-config moe-data-parallel-size
moe-dp-size msprobe-dump-config optimistic-prefill-attempts otlp-service-name
paged-experts-num-resident ple-offload-backend ple-offload-dir ple-offload-embedding
pre-warm-nccl prefill-decode-interval prefill-decode-interval-min-bs
prefill-delayer-max-delay-ms prefill-delayer-queue-min-ratio prefill-kv-cache-dequant-dtype
prefill-only-disable-kv-cache qsa-indexer-dtype radix-cache-backend radix-eviction-policy-config
retraction-policy return-aux-hidden-state-layer-ids return-hidden-states-mode return-input-ids
return-output-ids sampling-mask-max-tokens shared-experts-tp-size sidecar sidecar-args
smg-http-sidecar-port spec-trace-dir speculative-adaptive speculative-adaptive-config
speculative-dflash-block-size speculative-domino-candidate-pool-size
speculative-draft-kv-cache-dtype speculative-draft-sink-size speculative-draft-window-size
speculative-dsa-topk-backend speculative-dspark-align-verify-tokens-to-graph-tier
speculative-dspark-block-size speculative-dspark-confidence-sts-path
speculative-dspark-sps-table-path speculative-enable-w4a4-mxfp4-megamoe
speculative-ngram-external-corpus-max-tokens speculative-ngram-external-corpus-path
speculative-ngram-external-sam-budget speculative-use-block-verification
speculative-use-rejection-sampling ssl-ca-certs ssl-keyfile-password startup-weight-load-mode
stream-response-default-include-usage strip-thinking-cache swa-prefix-tails tokenizer-backend
trace-modules trust-mm-content-hashes trust-request-chat-template
unified-cache-external-linker-backend unified-cache-external-linker-config uno-lora-path use-ray
watermark-config weight-cache-mode weight-cache-socket weight-cache-timeout
weight-loader-drop-cache-after-load weight-loader-prefetch-checkpoints
weight-loader-prefetch-num-threads
""".split()
)
"""of SGLang, so that they are not called misspelled"""

ELSEWHERE = {
    "--max-model-len": ("vLLM", "--context-length"),
    "--gpu-memory-utilization": ("vLLM", "--mem-fraction-static"),
    "--max-num-seqs": ("vLLM", "--max-running-requests"),
    "--max-num-batched-tokens": ("vLLM", "--chunked-prefill-size"),
    "--tokenizer": ("vLLM", "--tokenizer-path"),
    "--block-size": ("vLLM", "--page-size"),
    "--ctx-size": ("llama.cpp", "--context-length"),
    "-c": ("llama.cpp", "--context-length"),
    "-m": ("llama.cpp", "--model-path"),
    "-hf": ("llama.cpp", "--model-path"),
    "--hf-repo": ("llama.cpp", "--model-path"),
    "--parallel": ("llama.cpp", "--max-running-requests"),
    "-np": ("llama.cpp", "--max-running-requests"),
    "--threads": ("llama.cpp", "--cpu-threads"),
    "-t": ("llama.cpp", "--cpu-threads"),
    "--alias": ("llama.cpp", "--served-model-name"),
    "--num-ctx": ("Ollama", "--context-length"),
}
"""what people type who come from elsewhere -> (from where, the flag that means it here)"""
