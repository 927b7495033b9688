"""Kernel choices, quantisation, graphs and other ways to compute."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import no_effect, not_available, option
from vivace.config.reasons import (
    EAGER,
    GPU_KERNELS,
    NO_CODE,
    NO_DIFFUSION,
    NO_GRAMMAR,
    NO_MODELOPT,
    NO_QUANTIZATION,
    NO_SPARSITY,
    NO_STATE,
    ONE_BACKEND,
)

ATTENTION = (
    "triton", "torch_native", "flex_attention", "nsa", "cutlass_mla", "fa3", "fa4", "flashinfer",
    "flashmla", "trtllm_mla", "trtllm_mha", "dual_chunk_flash_attn", "aiter", "wave", "intel_amx",
    "ascend", "intel_xpu", "dsa", "qsa", "dsv4", "compressed", "llada2_cfg_flashinfer",
    "cutedsl_mla", "tokenspeed_mla", "hpc_ops", "minicpm_flashattn", "minicpm_flashinfer",
)  # fmt: skip
SPARSE = (
    "flashmla_sparse", "flashmla_kv", "flashmla_auto", "flashmla_prefill", "flashmla_decode", "fa3",
    "tilelang", "aiter",
)  # fmt: skip
QUANTIZATIONS = (
    "awq", "fp8", "gptq", "marlin", "gptq_marlin", "awq_marlin", "bitsandbytes", "modelopt",
    "modelopt_fp8", "modelopt_fp4", "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "qoq",
    "w4afp8", "mxfp4", "auto-round", "compressed-tensors", "modelslim", "quark_int4fp8_moe",
    "mxfp8", "nvfp4_online", "modelopt_mixed", "auto-round-int8", "mxfp_w4a8", "quark",
    "quark_mxfp4", "mlx_q4", "mlx_q8", "humming",
)  # fmt: skip
NO_COMPILE = not_available("torch.compile is not used: it would need a compiler at run time")


@dataclass(frozen=True)
class QuantizationOptions:
    quantization: str | None = option(
        help="Format of quantised weights; GGUF is recognised by itself.",
        choices=["gguf", "unquant", *QUANTIZATIONS],
        values=dict.fromkeys(QUANTIZATIONS, NO_QUANTIZATION),
    )
    quantization_param_path: str | None = option(help="Scales of FP8 KV.", cpu=NO_QUANTIZATION)
    enable_fp32_lm_head: bool = option(
        False,
        "Logits in float32.",
        cpu=not_available("the head computes in --dtype", "use --dtype float32"),
    )
    modelopt_quant: str | None = option(help="ModelOpt recipe.", cpu=NO_MODELOPT)
    modelopt_checkpoint_restore_path: str | None = option(help="ModelOpt state.", cpu=NO_MODELOPT)
    modelopt_checkpoint_save_path: str | None = option(help="ModelOpt state.", cpu=NO_MODELOPT)
    modelopt_export_path: str | None = option(help="ModelOpt export.", cpu=NO_MODELOPT)
    quantize_and_serve: bool = option(False, "ModelOpt, then serve.", cpu=NO_MODELOPT)
    rl_quant_profile: str | None = option(help="FlashRL profile.", cpu=NO_QUANTIZATION)
    torchao_config: str | None = option(help="torchao.", trivial=[""], cpu=NO_QUANTIZATION)


@dataclass(frozen=True)
class KernelOptions:
    attention_backend: str | None = option(
        help="Attention kernels.", choices=ATTENTION, cpu=ONE_BACKEND
    )
    prefill_attention_backend: str | None = option(
        help="The same for prompts.", choices=ATTENTION, cpu=ONE_BACKEND
    )
    decode_attention_backend: str | None = option(
        help="The same for decoding.", choices=ATTENTION, cpu=ONE_BACKEND
    )
    sampling_backend: str | None = option(
        help="Sampling kernels.",
        choices=["flashinfer", "pytorch", "ascend"],
        cpu=no_effect("the CPU has one sampler"),
    )
    grammar_backend: str | None = option(
        help="Structured output.",
        choices=["xgrammar", "outlines", "llguidance", "none"],
        trivial=["none"],
        cpu=NO_GRAMMAR,
    )
    nsa_prefill_backend: str = option(
        "flashmla_sparse",
        "Sparse attention of prompts.",
        aliases=["dsa-prefill-backend"],
        choices=SPARSE,
        cpu=GPU_KERNELS,
    )
    nsa_decode_backend: str = option(
        "fa3",
        "Sparse attention of decoding.",
        aliases=["dsa-decode-backend"],
        choices=SPARSE,
        cpu=GPU_KERNELS,
    )
    fp8_gemm_backend: str = option(
        "auto",
        "FP8 products.",
        choices=[
            "auto", "deep_gemm", "flashinfer_trtllm", "cutlass", "triton", "aiter",
            "flashinfer_cutlass", "flashinfer_deepgemm", "flashinfer_cutedsl",
        ],
        cpu=GPU_KERNELS,
    )  # fmt: skip
    fp4_gemm_backend: str = option(
        "auto",
        "FP4 products.",
        choices=["auto", "flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm"],
        cpu=GPU_KERNELS,
    )
    disable_flashinfer_autotune: bool = option(False, "No autotuning.", cpu=GPU_KERNELS)
    disable_flashinfer_cutlass_moe_fp4_allgather: bool = option(
        False, "Quantise after gathering.", cpu=GPU_KERNELS
    )
    triton_attention_reduce_in_fp32: bool = option(False, "Partial results.", cpu=GPU_KERNELS)
    triton_attention_num_kv_splits: int = option(8, "Splits.", cpu=GPU_KERNELS)
    triton_attention_split_tile_size: int | None = option(help="Tile.", cpu=GPU_KERNELS)
    flashinfer_mla_disable_ragged: bool = option(False, "Paged MLA prefill.", cpu=GPU_KERNELS)
    enable_fused_qk_norm_rope: bool = option(False, "Fused norm and rotation.", cpu=GPU_KERNELS)
    disable_chunked_prefix_cache: bool = option(False, "MLA's chunked prefix.", cpu=GPU_KERNELS)
    enable_double_sparsity: bool = option(False, "Sparse attention.", cpu=NO_SPARSITY)
    ds_channel_config_path: str | None = option(help="Its channels.", cpu=NO_SPARSITY)
    ds_heavy_channel_num: int = option(32, "Its channels.", cpu=NO_SPARSITY)
    ds_heavy_token_num: int = option(256, "Its tokens.", cpu=NO_SPARSITY)
    ds_heavy_channel_type: str = option("qk", "Its kind.", cpu=NO_SPARSITY)
    ds_sparse_decode_threshold: int = option(4096, "Its threshold.", cpu=NO_SPARSITY)


@dataclass(frozen=True)
class OptimizationOptions:
    disable_cuda_graph_padding: bool = option(False, "Exact sizes only.", cpu=EAGER)
    enable_piecewise_cuda_graph: bool = option(False, "Graphs for prompts.", cpu=EAGER)
    piecewise_cuda_graph_tokens: tuple[int, ...] | None = option(
        help="Sizes.", aliases=["cuda-graph-bs-prefill"], cpu=EAGER
    )
    piecewise_cuda_graph_max_tokens: int | None = option(
        help="Largest size.", aliases=["cuda-graph-max-bs-prefill"], cpu=EAGER
    )
    piecewise_cuda_graph_compiler: str = option(
        "eager", "Compiler.", choices=["eager", "inductor"], cpu=EAGER
    )
    enable_torch_compile: bool = option(False, "Compile the forward.", cpu=NO_COMPILE)
    enable_torch_compile_debug_mode: bool = option(False, "Verbosely.", cpu=NO_COMPILE)
    torch_compile_max_bs: int = option(32, "Largest batch.", cpu=NO_COMPILE)
    disable_outlines_disk_cache: bool = option(
        False, "No cache on disk.", cpu=no_effect("there is no such cache")
    )
    constrained_json_whitespace_pattern: str | None = option(
        help="Whitespace in JSON.", cpu=NO_GRAMMAR
    )
    constrained_json_disable_any_whitespace: bool = option(False, "Compact JSON.", cpu=NO_GRAMMAR)
    multi_item_scoring_delimiter: int | None = option(
        help="Token between scored items.",
        cpu=not_available("scoring is not in this version"),
    )
    enable_custom_logit_processor: bool = option(
        False, "Logit processors sent by clients.", cpu=NO_CODE
    )
    enable_return_hidden_states: bool = option(False, "Return hidden states.", cpu=NO_STATE)
    rl_on_policy_target: str | None = option(
        help="Numerics of a trainer.",
        choices=["fsdp"],
        cpu=not_available(
            "trainers' numerics are not in this version", "use --enable-deterministic-inference"
        ),
    )
    dllm_algorithm: str | None = option(help="Diffusion decoding.", cpu=NO_DIFFUSION)
    dllm_algorithm_config: str | None = option(help="Its YAML.", cpu=NO_DIFFUSION)
