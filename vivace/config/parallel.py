"""Several devices, several nodes, prefill and decode apart, experts."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import no_effect, option
from vivace.config.secret import Secret
from vivace.config.unavailable import (
    CONTEXT_PARALLEL,
    NEEDS_DP,
    NO_COLLECTIVES,
    NO_ELASTICITY,
    NO_EXPERTS,
    NO_MEDIA,
    NO_PD,
    NO_PROCESSORS,
    NO_ROOMS,
    NO_TOKENS_OF_EXPERTS,
    ONE_PLACEMENT,
    OTHER_ALL_TO_ALL,
)

ROUND_ROBIN_ROOMS = "decode_round_robin"
MOE_RUNNERS = (
    "auto", "deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "flashinfer_cutlass",
    "flashinfer_mxfp4", "flashinfer_cutedsl", "cutlass", "experimental_sgl_trtllm",
    "flashinfer_trtllm_routed", "flashinfer_megamoe", "aiter", "marlin", "humming",
    "experimental_sgl_marlin", "lora_cutedsl", "lora_triton", "lora_marlin", "hpc_ops", "megamoe",
    "intel_xpu",
)  # fmt: skip
MOE_A2A: tuple[str, ...] = (
    "none", "deepep", "mooncake", "ascend_fuseep", "nixl", "mori", "flashinfer", "megamoe",
    "deepep_v2", "pplx", "ascend_tp", "flashinfer_megamoe",
)  # fmt: skip
HERE = ("none", "deepep", "ascend_fuseep")
OTHER_BALANCES = ("deepseek_vec", "deepseek_vec_hierarchical", "elasticity_aware")


@dataclass(frozen=True)
class ParallelOptions:
    tp_size: int = option(
        1,
        "Devices that share every layer.",
        flag="tensor-parallel-size",
        aliases=["tp-size", "tp"],
    )
    pp_size: int = option(
        1,
        "Devices in a row, each with some layers.",
        flag="pipeline-parallel-size",
        aliases=["pp-size", "pp"],
    )
    dp_size: int = option(
        1,
        "Replicas of the model behind one port.",
        flag="data-parallel-size",
        aliases=["dp-size", "dp"],
    )
    attn_cp_size: int = option(
        1,
        "Devices that share one long prompt.",
        aliases=["attention-context-parallel-size"],
        cpu=CONTEXT_PARALLEL,
    )
    pp_max_micro_batch_size: int | None = option(
        help="Maximum number of requests in a pipeline's micro-batch. Default: no limit."
    )
    pp_async_batch_depth: int = option(0, "Further micro-batches in flight, to hide communication.")
    nnodes: int = option(1, "Machines that serve together, each started with the same command.")
    node_rank: int = option(0, "Which machine this is; 0 has the HTTP server.")
    dist_init_addr: str | None = option(
        help="host:port of node 0, where the other machines join it.",
        aliases=["nccl-init-addr"],
    )
    nccl_port: int | None = option(
        help="First of the ports on which this machine's ranks expect those of others. Default: "
        "free ones."
    )
    dist_timeout: int = option(600, "Seconds in which all machines must have joined.")
    use_ray: bool = option(
        False, "Reserve devices in a Ray cluster, which starts the other nodes as actors."
    )
    cluster_key_file: str | None = option(
        help="File with the key that the machines know each other by; keep it private."
    )
    cluster_key: Secret | None = None
    """what that file, or VIVACE_CLUSTER_KEY, holds"""
    base_gpu_id: int = option(0, "Index of the first device.", cpu=no_effect("a CPU has no index"))
    gpu_id_step: int = option(
        1, "Distance between device indices.", cpu=no_effect("a CPU has no index")
    )
    load_balance_method: str = option(
        "auto",
        "Requests go to replicas in turn, or by load.",
        choices=[
            "auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens",
            "shortest_queue", "minimum_tokens", ROUND_ROBIN_ROOMS,
        ],
        values={"follow_bootstrap_room": NO_ROOMS},
    )  # fmt: skip
    prefill_round_robin_balance: bool = option(
        False, "Prefill servers are assigned round-robin.", cpu=NEEDS_DP
    )
    enable_dp_attention: bool = option(
        False,
        "Attention replicated over groups of ranks, experts over all.",
    )
    enable_dp_lm_head: bool = option(
        False,
        "Shard the output head inside an attention group only.",
        cpu=no_effect(
            "with --enable-dp-attention the head is always shared that way, without it among all"
        ),
    )
    enable_attn_tp_input_scattered: bool = option(
        False, "Keep the inputs of attention scattered over ranks.", cpu=NO_COLLECTIVES
    )
    enable_nsa_prefill_context_parallel: bool = option(
        False, "Context parallelism of sparse attention.", aliases=["enable-prefill-cp"],
        cpu=CONTEXT_PARALLEL,
    )  # fmt: skip
    nsa_prefill_cp_mode: str = option(
        "in-seq-split",
        "How a prompt is cut for context parallelism.",
        aliases=["cp-strategy"],
        choices=["in-seq-split", "round-robin-split", "zigzag", "interleave"],
        cpu=no_effect("it needs --attn-cp-size above 1"),
    )
    enable_two_batch_overlap: bool = option(
        False,
        "Split a batch in two: one computes while the other communicates.",
        cpu=NO_COLLECTIVES,
    )
    enable_single_batch_overlap: bool = option(
        False, "Overlap computing and communication inside one batch.", cpu=NO_COLLECTIVES
    )
    tbo_token_distribution_threshold: float = option(
        0.48, "Imbalance from which the two halves are cut by tokens.", cpu=NO_COLLECTIVES
    )
    disable_custom_all_reduce: bool = option(
        False, "Use the vendor's collectives only.", cpu=NO_COLLECTIVES
    )
    enable_mscclpp: bool = option(False, "Small all-reduce with MSCCL++.", cpu=NO_COLLECTIVES)
    enable_torch_symm_mem: bool = option(
        False, "All-reduce through torch's symmetric memory.", cpu=NO_COLLECTIVES
    )
    enable_nccl_nvls: bool = option(False, "NVLink SHARP in NCCL.", cpu=NO_COLLECTIVES)
    enable_symm_mem: bool = option(False, "NCCL's symmetric memory.", cpu=NO_COLLECTIVES)
    enable_flashinfer_allreduce_fusion: bool = option(
        False, "Fuse the all-reduce with the norm behind it.", cpu=NO_COLLECTIVES
    )


@dataclass(frozen=True)
class ExpertOptions:
    ep_size: int = option(
        1,
        "Devices that have different experts; it divides --tensor-parallel-size.",
        flag="expert-parallel-size",
        aliases=["ep-size", "ep"],
    )
    moe_a2a_backend: str = option(
        "none",
        "How tokens travel to the ranks of their experts: all ranks have all tokens (none), or a "
        "token goes to the ranks of its experts (deepep and ascend_fuseep, which are the same "
        "here); then --expert-parallel-size is --tensor-parallel-size.",
        choices=MOE_A2A,
        values={name: OTHER_ALL_TO_ALL for name in MOE_A2A if name not in HERE},
    )
    moe_runner_backend: str = option(
        "auto", "Kernels of the experts' matrix products.", choices=MOE_RUNNERS, cpu=NO_EXPERTS
    )
    flashinfer_mxfp4_moe_precision: str = option(
        "default",
        "Precision of activations in MXFP4 experts.",
        choices=["default", "bf16"],
        cpu=NO_EXPERTS,
    )
    deepep_mode: str = option(
        "auto",
        "With --moe-a2a-backend: steps of any length, never captured (normal); at most "
        "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK tokens of a rank, captured (low_latency); "
        "or each where it fits (auto).",
        choices=["normal", "low_latency", "auto"],
    )
    deepep_config: str | None = option(help="JSON with DeepEP's tuned settings.", cpu=NO_PROCESSORS)
    ep_num_redundant_experts: int = option(0, "Further copies of busy experts.")
    ep_dispatch_algorithm: str | None = option(
        help="Which copy of an expert a token goes to: by its position, in turn (static) or by a "
        "hash (dynamic); fake: to experts that it did not choose. Default: static.",
        choices=["static", "dynamic", "fake"],
    )
    init_expert_location: str = option(
        "trivial",
        "Placement of experts at the start: trivial, or JSON (the name of a file, or itself) with "
        "physical_to_logical_map or logical_count.",
    )
    enable_eplb: bool = option(False, "Move experts between ranks as the load changes.")
    eplb_algorithm: str = option(
        "auto",
        "Algorithm that finds the new placement.",
        choices=["auto", "deepseek", "deepseek_hierarchical", *OTHER_BALANCES],
        values=dict.fromkeys(OTHER_BALANCES, ONE_PLACEMENT),
    )
    eplb_rebalance_num_iterations: int = option(1000, "Steps between two rebalances.")
    eplb_rebalance_layers_per_chunk: int | None = option(
        help="Layers moved between two steps. Default: all."
    )
    eplb_min_rebalancing_utilization_threshold: float = option(
        1.0, "Skip a rebalance above this mean utilization."
    )
    expert_distribution_recorder_mode: str | None = option(
        help="What is recorded about routing: sums (stat, stat_approx) or counts of every step "
        "(per_pass). Default: nothing, but stat with --enable-eplb.",
        choices=["stat", "stat_approx", "per_pass", "per_token"],
        values={"per_token": NO_TOKENS_OF_EXPERTS},
    )
    expert_distribution_recorder_buffer_size: int | None = option(
        help="Steps the recorder keeps; -1: all. Default: 1000, or those of a rebalance."
    )
    enable_expert_distribution_metrics: bool = option(
        False, "Log how evenly the devices' experts are used."
    )
    moe_dense_tp_size: int | None = option(
        help="Devices that share dense layers of models with experts: 1, or all. Default: all.",
        aliases=["moe-dense-tp"],
    )
    elastic_ep_backend: str | None = option(
        help="Collectives that survive a lost rank.",
        choices=["none", "mooncake", "nixl"],
        trivial=["none"],
        cpu=NO_ELASTICITY,
    )
    mooncake_ib_device: str | None = option(
        help="RDMA devices of those collectives.", cpu=NO_EXPERTS
    )
    disable_shared_experts_fusion: bool = option(
        False,
        "Compute the shared expert apart from the routed ones.",
        cpu=no_effect("shared experts are never fused"),
    )
    enable_return_routed_experts: bool = option(
        False, "Let requests ask for the experts their tokens took.", cpu=NO_EXPERTS
    )
    kt_weight_path: str | None = option(
        help="KTransformers: weights of CPU experts.", cpu=NO_EXPERTS
    )
    kt_method: str = option("AMXINT4", "KTransformers: format of CPU experts.", cpu=NO_EXPERTS)
    kt_cpuinfer: int | None = option(help="KTransformers: threads.", cpu=NO_EXPERTS)
    kt_threadpool_count: int = option(2, "KTransformers: thread pools.", cpu=NO_EXPERTS)
    kt_num_gpu_experts: int | None = option(
        help="KTransformers: experts on the device.", cpu=NO_EXPERTS
    )
    kt_max_deferred_experts_per_token: int | None = option(
        help="KTransformers: experts per token that may come later.", cpu=NO_EXPERTS
    )


@dataclass(frozen=True)
class DisaggregationOptions:
    disaggregation_mode: str = option(
        "null", "Serve prompts only, or decoding only.", choices=["null", "prefill", "decode"],
        cpu=NO_PD,
    )  # fmt: skip
    disaggregation_transfer_backend: str = option(
        "mooncake",
        "How KV travels from prefill to decode servers.",
        choices=["mooncake", "nixl", "ascend", "fake", "mori", "mooncake_tcp"],
        cpu=no_effect("it needs --disaggregation-mode"),
    )
    disaggregation_bootstrap_port: int = option(
        8998,
        "Port where prefill and decode servers meet.",
        cpu=no_effect("it needs --disaggregation-mode"),
    )
    disaggregation_decode_tp: int | None = option(
        help="Tensor-parallel size of the decode servers (now negotiated).", cpu=NO_PD
    )
    disaggregation_decode_dp: int | None = option(
        help="Data-parallel size of the decode servers (now negotiated).", cpu=NO_PD
    )
    disaggregation_prefill_pp: int = option(
        1, "Pipeline size of the prefill servers (now negotiated).", cpu=NO_PD
    )
    disaggregation_ib_device: str | None = option(
        help="RDMA devices of the KV transfer.", cpu=NO_PD
    )
    disaggregation_decode_enable_offload_kvcache: bool = option(
        False, "Decode servers write KV to the host tier.", cpu=NO_PD
    )
    disaggregation_decode_enable_fake_auto: bool = option(
        False, "Test decoding without a prefill server.", cpu=NO_PD
    )
    num_reserved_decode_tokens: int = option(
        512,
        "Tokens a decode server keeps free per admitted request.",
        cpu=no_effect("it needs --disaggregation-mode"),
    )
    disaggregation_decode_polling_interval: int = option(
        1, "Steps between two checks of transfers.", cpu=no_effect("it needs --disaggregation-mode")
    )
    encoder_only: bool = option(False, "Serve the vision encoder only.", cpu=NO_MEDIA)
    language_only: bool = option(False, "Serve the language part only.", cpu=NO_MEDIA)
    encoder_transfer_backend: str = option(
        "zmq_to_scheduler",
        "How embeddings travel to the language server.",
        choices=["zmq_to_scheduler", "zmq_to_tokenizer", "mooncake", "auto"],
        cpu=NO_MEDIA,
    )
    encoder_urls: tuple[str, ...] | None = option(
        help="Addresses of the encoder servers.", cpu=NO_MEDIA
    )
    enable_pdmux: bool = option(
        False, "Prefill and decode share one GPU, each on some of its processors.", cpu=NO_PD
    )
    pdmux_config_path: str | None = option(help="YAML of that sharing.", cpu=NO_PD)
    sm_group_num: int = option(8, "Parts into which the GPU is cut for it.", cpu=NO_PD)
