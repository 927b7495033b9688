"""Kernel choices, quantization, graphs and other ways to compute."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import no_effect, not_available, option, works
from vivace.config.unavailable import (
    EAGER,
    GPU_KERNELS,
    NO_CODE,
    NO_DIFFUSION,
    NO_MODELOPT,
    NO_QUANTIZATION,
    NO_SPARSITY,
    ONE_BACKEND,
)

ATTENTION = (
    "triton", "torch_native", "flex_attention", "nsa", "cutlass_mla", "fa3", "fa4", "flashinfer",
    "flashmla", "trtllm_mla", "trtllm_mha", "dual_chunk_flash_attn", "aiter", "wave", "intel_amx",
    "ascend", "intel_xpu", "dsa", "qsa", "dsv4", "compressed", "llada2_cfg_flashinfer",
    "cutedsl_mla", "tokenspeed_mla", "hpc_ops", "minicpm_flashattn", "minicpm_flashinfer",
    "hybrid_linear_attn",
)  # fmt: skip
SPARSE = (
    "flashmla_sparse", "flashmla_kv", "flashmla_auto", "flashmla_prefill", "flashmla_decode", "fa3",
    "tilelang", "aiter",
)  # fmt: skip
KERNELS = ("marlin", "gptq_marlin", "awq_marlin", "moe_wna16")
"""values of --quantization that name how a GPU multiplies with AWQ's and GPTQ's weights"""
QUANTIZATIONS = (
    "bitsandbytes", "modelopt", "modelopt_fp8", "modelopt_fp4", "petit_nvfp4", "w8a8_fp8", "qoq",
    "w4afp8", "auto-round", "quark_int4fp8_moe", "mxfp8", "nvfp4_online", "modelopt_mixed",
    "auto-round-int8", "mxfp_w4a8", "quark", "quark_mxfp4", "mlx_q4", "mlx_q8", "humming", *KERNELS,
)  # fmt: skip
INT8 = ("w8a8_int8", "w8a16")
"""values of --quantization that make int8 of what is not yet"""
NO_DELIMITER = no_effect(
    "no token stands between items, which share the query's computed prefix, with the same numbers"
)
NO_KERNEL = not_available(
    "it names kernels of GPUs", "leave it out: a checkpoint of AWQ or GPTQ says what it is"
)
UNQUANT = "unquant"
"""value of --quantization: floats"""
METHODS = (
    "gguf", UNQUANT, "w8a8_int8", "w8a16", "fp8", "awq", "gptq", "modelslim", "mxfp4",
    "compressed-tensors", *QUANTIZATIONS,
)  # fmt: skip
"""values of --quantization"""
METHOD_STATES = {
    **dict.fromkeys(QUANTIZATIONS, NO_QUANTIZATION),
    **dict.fromkeys(KERNELS, NO_KERNEL),
}
NO_COMPILE = not_available("torch.compile is not used: it would need a compiler at run time")


@dataclass(frozen=True)
class QuantizationOptions:
    quantization: str | None = option(
        help="Weights in int8: w8a8_int8 (activations too), w8a16 (they stay floats); what is not "
        "int8 in the checkpoint becomes it while loading. gguf: blocks as stored (recognized by "
        "itself). unquant: int8, FP8, AWQ, GPTQ, MXFP4 become floats. fp8, awq, gptq, modelslim, "
        "mxfp4, compressed-tensors: what the checkpoint is, which is the default. The head stays.",
        choices=METHODS,
        values=METHOD_STATES,
    )
    activation_dtype: str = option(
        "auto",
        "What GGUF blocks of at most six bits are multiplied with: floats, or int8 with one scale "
        "for 32 neighbors, as llama.cpp does it (faster). auto: int8 where the kernels take it. "
        "The head's are floats.",
        choices=["auto", "float", "int8"],
    )
    quantization_param_path: str | None = option(
        help="JSON with the scales of FP8 KV.", cpu=NO_QUANTIZATION
    )
    enable_fp32_lm_head: bool = option(
        False,
        "Compute logits in float32.",
        cpu=not_available("the head computes in --dtype", "use --dtype float32"),
    )
    modelopt_quant: str | None = option(
        help="NVIDIA ModelOpt recipe to quantize with while loading.", cpu=NO_MODELOPT
    )
    modelopt_checkpoint_restore_path: str | None = option(
        help="Saved ModelOpt state to start from.", cpu=NO_MODELOPT
    )
    modelopt_checkpoint_save_path: str | None = option(
        help="Where ModelOpt state is saved.", cpu=NO_MODELOPT
    )
    modelopt_export_path: str | None = option(
        help="Where ModelOpt exports the quantized model.", cpu=NO_MODELOPT
    )
    quantize_and_serve: bool = option(False, "Quantize with ModelOpt, then serve.", cpu=NO_MODELOPT)
    rl_quant_profile: str | None = option(
        help="Profile file of FlashRL loading.", cpu=NO_QUANTIZATION
    )
    torchao_config: str | None = option(
        help="Quantization by torchao, as int8wo.", trivial=[""], cpu=NO_QUANTIZATION
    )


@dataclass(frozen=True)
class KernelOptions:
    attention_backend: str | None = option(
        help="Kernels of attention.", choices=ATTENTION, cpu=ONE_BACKEND
    )
    prefill_attention_backend: str | None = option(
        help="Kernels of attention in prompts only.", choices=ATTENTION, cpu=ONE_BACKEND
    )
    decode_attention_backend: str | None = option(
        help="Kernels of attention in decoding only.", choices=ATTENTION, cpu=ONE_BACKEND
    )
    sampling_backend: str | None = option(
        help="Kernels of sampling.",
        choices=["flashinfer", "pytorch", "ascend"],
        cpu=no_effect("the CPU has one sampler"),
    )
    grammar_backend: str | None = option(
        help="Library for structured output; none: requests that ask for it are refused, as by "
        "default where llguidance is not installed.",
        choices=["xgrammar", "outlines", "llguidance", "none"],
        values={
            "xgrammar": works("where the Python package xgrammar is installed: pip install it"),
            "outlines": no_effect("its grammars are obeyed by llguidance here"),
        },
    )
    nsa_prefill_backend: str = option(
        "flashmla_sparse",
        "Sparse attention (DeepSeek V3.2) in prompts.",
        aliases=["dsa-prefill-backend"],
        choices=SPARSE,
        cpu=GPU_KERNELS,
    )
    nsa_decode_backend: str = option(
        "fa3",
        "Sparse attention (DeepSeek V3.2) in decoding.",
        aliases=["dsa-decode-backend"],
        choices=SPARSE,
        cpu=GPU_KERNELS,
    )
    fp8_gemm_backend: str = option(
        "auto",
        "Kernels of FP8 matrix products.",
        choices=[
            "auto", "deep_gemm", "flashinfer_trtllm", "cutlass", "triton", "aiter",
            "flashinfer_cutlass", "flashinfer_deepgemm", "flashinfer_cutedsl",
        ],
        cpu=GPU_KERNELS,
    )  # fmt: skip
    fp4_gemm_backend: str = option(
        "auto",
        "Kernels of FP4 matrix products.",
        choices=["auto", "flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm"],
        cpu=GPU_KERNELS,
    )
    disable_flashinfer_autotune: bool = option(
        False, "Do not tune FlashInfer's kernels at start.", cpu=GPU_KERNELS
    )
    disable_flashinfer_cutlass_moe_fp4_allgather: bool = option(
        False, "Gather expert inputs before quantizing them to FP4.", cpu=GPU_KERNELS
    )
    triton_attention_reduce_in_fp32: bool = option(
        False, "Keep partial results of Triton attention in float32.", cpu=GPU_KERNELS
    )
    triton_attention_num_kv_splits: int = option(
        8, "Parts into which Triton decoding splits the KV.", cpu=GPU_KERNELS
    )
    triton_attention_split_tile_size: int | None = option(
        help="Fixed tile of Triton attention, for determinism.", cpu=GPU_KERNELS
    )
    flashinfer_mla_disable_ragged: bool = option(
        False, "Use the paged kernel for MLA prompts.", cpu=GPU_KERNELS
    )
    enable_fused_qk_norm_rope: bool = option(
        False, "One kernel for the norm and rotation of queries and keys.", cpu=GPU_KERNELS
    )
    disable_chunked_prefix_cache: bool = option(
        False, "Do not walk MLA prefixes in chunks.", cpu=GPU_KERNELS
    )
    enable_double_sparsity: bool = option(
        False, "Attend to important tokens and channels only.", cpu=NO_SPARSITY
    )
    ds_channel_config_path: str | None = option(
        help="File with the channels of double sparsity.", cpu=NO_SPARSITY
    )
    ds_heavy_channel_num: int = option(32, "Channels of double sparsity.", cpu=NO_SPARSITY)
    ds_heavy_token_num: int = option(256, "Tokens of double sparsity.", cpu=NO_SPARSITY)
    ds_heavy_channel_type: str = option(
        "qk", "Which projection's channels double sparsity uses.", cpu=NO_SPARSITY
    )
    ds_sparse_decode_threshold: int = option(
        4096, "Length from which double sparsity decodes sparsely.", cpu=NO_SPARSITY
    )


@dataclass(frozen=True)
class OptimizationOptions:
    disable_cuda_graph_padding: bool = option(
        False, "Use a captured graph for exactly its batch size only."
    )
    enable_piecewise_cuda_graph: bool = option(
        False, "Capture prompt steps in pieces between attention layers.", cpu=EAGER
    )
    piecewise_cuda_graph_tokens: tuple[int, ...] | None = option(
        help="Token counts of prompt steps to capture.",
        aliases=["cuda-graph-bs-prefill"],
        cpu=EAGER,
    )
    piecewise_cuda_graph_max_tokens: int | None = option(
        help="Largest prompt step to capture.", aliases=["cuda-graph-max-bs-prefill"], cpu=EAGER
    )
    piecewise_cuda_graph_compiler: str = option(
        "eager", "What compiles those pieces.", choices=["eager", "inductor"], cpu=EAGER
    )
    enable_torch_compile: bool = option(
        False, "Compile the decode step with torch.compile.", cpu=NO_COMPILE
    )
    enable_torch_compile_debug_mode: bool = option(False, "Compile verbosely.", cpu=NO_COMPILE)
    torch_compile_max_bs: int = option(32, "Largest batch to compile.", cpu=NO_COMPILE)
    disable_outlines_disk_cache: bool = option(
        False,
        "Keep no cache of compiled grammars on disk.",
        cpu=no_effect("there is no such cache"),
    )
    constrained_json_whitespace_pattern: str | None = option(
        help="Pattern of the whitespace between parts of JSON; default: little."
    )
    constrained_json_disable_any_whitespace: bool = option(
        False, "JSON output without whitespace between its parts."
    )
    multi_item_scoring_delimiter: int | None = option(
        help="Token id between the items of a scoring request.", cpu=NO_DELIMITER
    )
    enable_mis: bool = option(
        False, "Items of a scoring request share all of the query: prefix cache, small pages."
    )
    enable_custom_logit_processor: bool = option(
        False, "Run logit processors that clients send.", cpu=NO_CODE
    )
    enable_return_hidden_states: bool = option(
        False, "Let requests of /generate ask for hidden states."
    )
    rl_on_policy_target: str | None = option(
        help="Match the numerics of a training framework.",
        choices=["fsdp"],
        cpu=not_available(
            "trainers' numerics are not supported yet", "use --enable-deterministic-inference"
        ),
    )
    dllm_algorithm: str | None = option(
        help="Decoding algorithm of diffusion language models.", cpu=NO_DIFFUSION
    )
    dllm_algorithm_config: str | None = option(
        help="YAML settings of that algorithm.", cpu=NO_DIFFUSION
    )
