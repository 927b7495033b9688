"""Every spelling of SGLang's launch flags that Vivace promises to parse, without the dashes.

The 300 of the documentation's feature table, those it leaves out, aliases, and retired ones.
"""

SPELLINGS = """
model-path model tokenizer-path tokenizer-mode tokenizer-worker-num skip-tokenizer-init
load-format model-loader-extra-config trust-remote-code context-length is-embedding
enable-multimodal revision model-impl host port skip-server-warmup warmups nccl-port
fastapi-root-path grpc-mode dtype quantization quantization-param-path kv-cache-dtype
enable-fp32-lm-head modelopt-quant modelopt-checkpoint-restore-path
modelopt-checkpoint-save-path modelopt-export-path quantize-and-serve rl-quant-profile
mem-fraction-static max-running-requests prefill-max-requests max-queued-requests
max-total-tokens chunked-prefill-size max-prefill-tokens schedule-policy
enable-priority-scheduling schedule-low-priority-values-first
priority-scheduling-preemption-threshold schedule-conservativeness page-size
swa-full-tokens-ratio disable-hybrid-swa-memory abort-on-priority-when-disabled
enable-dynamic-chunking device tensor-parallel-size tp-size pipeline-parallel-size pp-size
pp-max-micro-batch-size pp-async-batch-depth stream-interval stream-output random-seed
constrained-json-whitespace-pattern constrained-json-disable-any-whitespace watchdog-timeout
soft-watchdog-timeout dist-timeout base-gpu-id gpu-id-step sleep-on-idle custom-sigquit-handler
log-level log-level-http log-requests log-requests-level log-requests-format crash-dump-folder
enable-metrics enable-metrics-for-all-schedulers tokenizer-metrics-custom-labels-header
tokenizer-metrics-allowed-custom-labels bucket-time-to-first-token bucket-inter-token-latency
bucket-e2e-request-latency collect-tokens-histogram prompt-tokens-buckets
generation-tokens-buckets gc-warning-threshold-secs decode-log-interval
enable-request-time-stats-logging kv-events-config enable-trace oltp-traces-endpoint
export-metrics-to-file export-metrics-to-file-dir data-parallel-size dp-size load-balance-method
prefill-round-robin-balance dist-init-addr nccl-init-addr nnodes node-rank
json-model-override-args preferred-sampling-params enable-lora max-lora-rank lora-target-modules
lora-paths max-loras-per-batch max-loaded-loras lora-eviction-policy lora-backend
max-lora-chunk-size attention-backend prefill-attention-backend decode-attention-backend
sampling-backend grammar-backend mm-attention-backend nsa-prefill-backend nsa-decode-backend
fp8-gemm-backend disable-flashinfer-autotune speculative-algorithm speculative-draft-model-path
speculative-draft-model speculative-draft-model-revision speculative-draft-load-format
speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens
speculative-accept-threshold-single speculative-accept-threshold-acc speculative-token-map
speculative-attention-mode speculative-moe-runner-backend speculative-moe-a2a-backend
speculative-draft-attention-backend speculative-draft-model-quantization
speculative-ngram-min-match-window-size speculative-ngram-max-match-window-size
speculative-ngram-min-bfs-breadth speculative-ngram-max-bfs-breadth speculative-ngram-match-type
speculative-ngram-branch-length speculative-ngram-capacity expert-parallel-size ep-size ep
moe-a2a-backend moe-runner-backend flashinfer-mxfp4-moe-precision
enable-flashinfer-allreduce-fusion deepep-mode deepep-config ep-num-redundant-experts
ep-dispatch-algorithm init-expert-location enable-eplb eplb-algorithm
eplb-rebalance-layers-per-chunk eplb-min-rebalancing-utilization-threshold
expert-distribution-recorder-mode expert-distribution-recorder-buffer-size
enable-expert-distribution-metrics moe-dense-tp-size elastic-ep-backend mooncake-ib-device
max-mamba-cache-size mamba-ssm-dtype mamba-full-memory-ratio mamba-scheduler-strategy
mamba-track-interval enable-hierarchical-cache hicache-ratio hicache-size hicache-write-policy
radix-eviction-policy hicache-io-backend hicache-mem-layout hicache-storage-backend
hicache-storage-prefetch-policy hicache-storage-backend-extra-config enable-lmcache
cpu-offload-gb offload-group-size offload-num-in-group offload-prefetch-step offload-mode
multi-item-scoring-delimiter disable-radix-cache cuda-graph-max-bs cuda-graph-bs
disable-cuda-graph disable-cuda-graph-padding enable-profile-cuda-graph enable-cudagraph-gc
enable-nccl-nvls enable-symm-mem disable-flashinfer-cutlass-moe-fp4-allgather
enable-tokenizer-batch-encode disable-tokenizer-batch-encode disable-outlines-disk-cache
disable-custom-all-reduce enable-mscclpp enable-torch-symm-mem disable-overlap-schedule
enable-mixed-chunk enable-dp-attention enable-dp-lm-head enable-two-batch-overlap
enable-single-batch-overlap tbo-token-distribution-threshold enable-torch-compile
enable-torch-compile-debug-mode enable-piecewise-cuda-graph piecewise-cuda-graph-tokens
piecewise-cuda-graph-compiler torch-compile-max-bs piecewise-cuda-graph-max-tokens
torchao-config enable-nan-detection enable-p2p-check triton-attention-reduce-in-fp32
triton-attention-num-kv-splits triton-attention-split-tile-size delete-ckpt-after-loading
enable-memory-saver enable-weights-cpu-backup enable-draft-weights-cpu-backup
allow-auto-truncate enable-custom-logit-processor flashinfer-mla-disable-ragged
disable-shared-experts-fusion disable-chunked-prefix-cache disable-fast-image-processor
keep-mm-feature-on-device enable-return-hidden-states enable-return-routed-experts
scheduler-recv-interval numa-node rl-on-policy-target enable-layerwise-nvtx-marker
enable-attn-tp-input-scattered enable-nsa-prefill-context-parallel enable-fused-qk-norm-rope
enable-dynamic-batch-tokenizer dynamic-batch-tokenizer-batch-size
dynamic-batch-tokenizer-batch-timeout debug-tensor-dump-output-folder debug-tensor-dump-layers
debug-tensor-dump-input-file disaggregation-mode disaggregation-transfer-backend
disaggregation-bootstrap-port disaggregation-decode-tp disaggregation-decode-dp
disaggregation-ib-device disaggregation-decode-enable-offload-kvcache
disaggregation-decode-enable-fake-auto num-reserved-decode-tokens
disaggregation-decode-polling-interval encoder-only language-only encoder-transfer-backend
encoder-urls custom-weight-loader weight-loader-disable-mmap
remote-instance-weight-loader-seed-instance-ip
remote-instance-weight-loader-seed-instance-service-port
remote-instance-weight-loader-send-weights-group-ports remote-instance-weight-loader-backend
remote-instance-weight-loader-start-seed-via-transfer-engine enable-pdmux pdmux-config-path
sm-group-num mm-max-concurrent-calls mm-per-request-timeout enable-broadcast-mm-inputs-process
mm-process-config mm-enable-dp-encoder limit-mm-data-per-request decrypted-config-file
decrypted-draft-config-file enable-prefix-mm-cache enable-deterministic-inference forward-hooks
config checkpoint-engine-wait-weights-before-ready kt-weight-path kt-method kt-cpuinfer
kt-threadpool-count kt-num-gpu-experts kt-max-deferred-experts-per-token enable-double-sparsity
ds-channel-config-path ds-heavy-channel-num ds-heavy-token-num ds-heavy-channel-type
ds-sparse-decode-threshold tool-server moe-dense-tp tp dp nsa-prefill-cp-mode attn-cp-size
attention-context-parallel-size enable-deepep-moe enable-ep-moe hybrid-kvcache-ratio
enable-prefill-delayer prefill-delayer-max-delay-passes
prefill-delayer-token-usage-low-watermark prefill-delayer-forward-passes-buckets
prefill-delayer-wait-seconds-buckets download-dir model-checksum log-requests-target
uvicorn-access-log-exclude-prefixes show-time-cost otlp-traces-endpoint api-key admin-api-key
served-model-name weight-version chat-template hf-chat-template-name completion-template
file-storage-path enable-cache-report reasoning-parser tool-call-parser sampling-defaults
enable-lora-overlap-loading fp4-gemm-backend enable-multi-layer-eagle
eplb-rebalance-num-iterations disable-hicache-numa-detect
hierarchical-sparse-attention-extra-config dllm-algorithm dllm-algorithm-config
disable-tokenizer-batch-decode num-continuous-decode-steps
enable-precise-embedding-interpolation debug-tensor-dump-inject disaggregation-prefill-pp
disable-mla enable-flashinfer-mla cpu-threads insecure
""".split()
