"""Several devices, several nodes, prefill and decode apart, experts."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import no_effect, option
from vivace.config.reasons import (
    ALONE,
    NEEDS_DP,
    NO_COLLECTIVES,
    NO_EXPERTS,
    NO_MEDIA,
    NO_PD,
    ONE_DEVICE,
    PIPELINE,
)

ROUND_ROBIN_ROOMS = "decode_round_robin"
MOE_RUNNERS = (
    "auto", "deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "flashinfer_cutlass",
    "flashinfer_mxfp4", "flashinfer_cutedsl", "cutlass", "experimental_sgl_trtllm",
    "flashinfer_trtllm_routed",
)  # fmt: skip
MOE_A2A = (
    "none", "deepep", "mooncake", "ascend_fuseep", "nixl", "mori", "flashinfer", "megamoe",
)  # fmt: skip


@dataclass(frozen=True)
class ParallelOptions:
    tp_size: int = option(
        1,
        "Devices that share every layer.",
        flag="tensor-parallel-size",
        aliases=["tp-size", "tp"],
        cpu=ONE_DEVICE,
    )
    pp_size: int = option(
        1,
        "Devices in a row, each with some layers.",
        flag="pipeline-parallel-size",
        aliases=["pp-size", "pp"],
        cpu=ONE_DEVICE,
    )
    dp_size: int = option(
        1,
        "Replicas behind one port.",
        flag="data-parallel-size",
        aliases=["dp-size", "dp"],
        cpu=ONE_DEVICE,
    )
    attn_cp_size: int = option(
        1,
        "Devices that share one long prompt.",
        aliases=["attention-context-parallel-size"],
        cpu=ONE_DEVICE,
    )
    pp_max_micro_batch_size: int | None = option(help="Requests per micro-batch.", cpu=PIPELINE)
    pp_async_batch_depth: int = option(0, "Further micro-batches in flight.", cpu=PIPELINE)
    nnodes: int = option(1, "Machines of this deployment.", cpu=ONE_DEVICE)
    node_rank: int = option(0, "Which of them this is.", cpu=ONE_DEVICE)
    dist_init_addr: str | None = option(
        help="host:port where ranks meet.", aliases=["nccl-init-addr"], cpu=ALONE
    )
    nccl_port: int | None = option(help="Port where ranks meet.", cpu=ALONE)
    dist_timeout: int | None = option(help="Seconds a collective may take.", cpu=ALONE)
    base_gpu_id: int = option(0, "First device index.", cpu=no_effect("a CPU has no index"))
    gpu_id_step: int = option(1, "Stride of indices.", cpu=no_effect("a CPU has no index"))
    load_balance_method: str = option(
        "auto",
        "How requests are spread over replicas.",
        choices=[
            "auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens",
            "shortest_queue", "minimum_tokens", ROUND_ROBIN_ROOMS,
        ],
        cpu=NEEDS_DP,
    )  # fmt: skip
    prefill_round_robin_balance: bool = option(
        False, "Promise that prefill servers take turns.", cpu=NEEDS_DP
    )
    enable_dp_attention: bool = option(
        False, "Attention by data parallelism.", cpu=no_effect("it needs --dp-size above 1")
    )
    enable_dp_lm_head: bool = option(
        False, "Head inside the attention group.", cpu=no_effect("it needs --enable-dp-attention")
    )
    enable_attn_tp_input_scattered: bool = option(
        False, "Scattered attention inputs.", cpu=NO_COLLECTIVES
    )
    enable_nsa_prefill_context_parallel: bool = option(
        False, "Context parallelism of sparse attention.", aliases=["enable-prefill-cp"],
        cpu=ONE_DEVICE,
    )  # fmt: skip
    nsa_prefill_cp_mode: str = option(
        "in-seq-split",
        "How a prompt is cut for it.",
        aliases=["cp-strategy"],
        choices=["in-seq-split", "round-robin-split", "zigzag", "interleave"],
        cpu=no_effect("it needs --attn-cp-size above 1"),
    )
    enable_two_batch_overlap: bool = option(
        False, "Two halves overlap their communication.", cpu=NO_COLLECTIVES
    )
    enable_single_batch_overlap: bool = option(
        False, "Overlap inside one batch.", cpu=NO_COLLECTIVES
    )
    tbo_token_distribution_threshold: float = option(
        0.48, "When halves are too unequal.", cpu=NO_COLLECTIVES
    )
    disable_custom_all_reduce: bool = option(False, "Vendor collectives.", cpu=NO_COLLECTIVES)
    enable_mscclpp: bool = option(False, "MSCCL++.", cpu=NO_COLLECTIVES)
    enable_torch_symm_mem: bool = option(False, "torch symmetric memory.", cpu=NO_COLLECTIVES)
    enable_nccl_nvls: bool = option(False, "NVLink SHARP.", cpu=NO_COLLECTIVES)
    enable_symm_mem: bool = option(False, "NCCL symmetric memory.", cpu=NO_COLLECTIVES)
    enable_flashinfer_allreduce_fusion: bool = option(
        False, "All-reduce fused with the norm.", cpu=NO_COLLECTIVES
    )


@dataclass(frozen=True)
class ExpertOptions:
    ep_size: int = option(
        1,
        "Devices that share the experts.",
        flag="expert-parallel-size",
        aliases=["ep-size", "ep"],
        cpu=ONE_DEVICE,
    )
    moe_a2a_backend: str = option(
        "none", "How tokens travel to experts.", choices=MOE_A2A, cpu=NO_EXPERTS
    )
    moe_runner_backend: str = option(
        "auto", "Kernels of experts.", choices=MOE_RUNNERS, cpu=NO_EXPERTS
    )
    flashinfer_mxfp4_moe_precision: str = option(
        "default", "Precision of those kernels.", choices=["default", "bf16"], cpu=NO_EXPERTS
    )
    deepep_mode: str = option(
        "auto", "DeepEP's mode.", choices=["normal", "low_latency", "auto"], cpu=NO_EXPERTS
    )
    deepep_config: str | None = option(help="DeepEP's JSON settings.", cpu=NO_EXPERTS)
    ep_num_redundant_experts: int = option(0, "Copies of experts.", cpu=NO_EXPERTS)
    ep_dispatch_algorithm: str | None = option(help="Which copy is used.", cpu=NO_EXPERTS)
    init_expert_location: str = option("trivial", "First placement.", cpu=NO_EXPERTS)
    enable_eplb: bool = option(False, "Balance experts.", cpu=NO_EXPERTS)
    eplb_algorithm: str = option("auto", "How.", cpu=NO_EXPERTS)
    eplb_rebalance_num_iterations: int = option(1000, "How often, in steps.", cpu=NO_EXPERTS)
    eplb_rebalance_layers_per_chunk: int | None = option(help="Layers at once.", cpu=NO_EXPERTS)
    eplb_min_rebalancing_utilization_threshold: float = option(
        1.0, "Balance below this use.", cpu=NO_EXPERTS
    )
    expert_distribution_recorder_mode: str | None = option(help="Record routing.", cpu=NO_EXPERTS)
    expert_distribution_recorder_buffer_size: int | None = option(
        help="Steps recorded.", cpu=NO_EXPERTS
    )
    enable_expert_distribution_metrics: bool = option(False, "Metrics of it.", cpu=NO_EXPERTS)
    moe_dense_tp_size: int | None = option(
        help="Devices that share dense layers.",
        aliases=["moe-dense-tp"],
        trivial=[1],
        cpu=NO_EXPERTS,
    )
    elastic_ep_backend: str | None = option(
        help="Survive lost ranks.", choices=["none", "mooncake", "nixl"], trivial=["none"],
        cpu=NO_EXPERTS,
    )  # fmt: skip
    mooncake_ib_device: str | None = option(help="InfiniBand devices.", cpu=NO_EXPERTS)
    disable_shared_experts_fusion: bool = option(
        False, "Shared expert apart.", cpu=no_effect("shared experts are never fused")
    )
    enable_return_routed_experts: bool = option(False, "Return routing.", cpu=NO_EXPERTS)
    kt_weight_path: str | None = option(help="KTransformers weights.", cpu=NO_EXPERTS)
    kt_method: str = option("AMXINT4", "KTransformers format.", cpu=NO_EXPERTS)
    kt_cpuinfer: int | None = option(help="KTransformers threads.", cpu=NO_EXPERTS)
    kt_threadpool_count: int = option(2, "KTransformers pools.", cpu=NO_EXPERTS)
    kt_num_gpu_experts: int | None = option(help="Experts on the device.", cpu=NO_EXPERTS)
    kt_max_deferred_experts_per_token: int | None = option(help="Deferral.", cpu=NO_EXPERTS)


@dataclass(frozen=True)
class DisaggregationOptions:
    disaggregation_mode: str = option(
        "null", "Serve prompts only, or decoding only.", choices=["null", "prefill", "decode"],
        cpu=NO_PD,
    )  # fmt: skip
    disaggregation_transfer_backend: str = option(
        "mooncake",
        "How KV travels.",
        choices=["mooncake", "nixl", "ascend", "fake", "mori", "mooncake_tcp"],
        cpu=no_effect("it needs --disaggregation-mode"),
    )
    disaggregation_bootstrap_port: int = option(
        8998, "Where servers meet.", cpu=no_effect("it needs --disaggregation-mode")
    )
    disaggregation_decode_tp: int | None = option(help="Decode's tp.", cpu=NO_PD)
    disaggregation_decode_dp: int | None = option(help="Decode's dp.", cpu=NO_PD)
    disaggregation_prefill_pp: int = option(1, "Prefill's pp.", cpu=NO_PD)
    disaggregation_ib_device: str | None = option(help="InfiniBand devices.", cpu=NO_PD)
    disaggregation_decode_enable_offload_kvcache: bool = option(
        False, "Offload decoded KV.", cpu=NO_PD
    )
    disaggregation_decode_enable_fake_auto: bool = option(False, "Fake prefill.", cpu=NO_PD)
    num_reserved_decode_tokens: int = option(
        512, "Tokens kept free.", cpu=no_effect("it needs --disaggregation-mode")
    )
    disaggregation_decode_polling_interval: int = option(
        1, "Steps between polls.", cpu=no_effect("it needs --disaggregation-mode")
    )
    encoder_only: bool = option(False, "Serve the vision encoder only.", cpu=NO_MEDIA)
    language_only: bool = option(False, "Serve the language part only.", cpu=NO_MEDIA)
    encoder_transfer_backend: str = option(
        "zmq_to_scheduler",
        "How embeddings travel.",
        choices=["zmq_to_scheduler", "zmq_to_tokenizer", "mooncake", "auto"],
        cpu=NO_MEDIA,
    )
    encoder_urls: tuple[str, ...] | None = option(help="Encoder servers.", cpu=NO_MEDIA)
    enable_pdmux: bool = option(False, "Prefill and decode share a GPU.", cpu=NO_PD)
    pdmux_config_path: str | None = option(help="YAML of that.", cpu=NO_PD)
    sm_group_num: int = option(8, "Partitions of that.", cpu=NO_PD)
