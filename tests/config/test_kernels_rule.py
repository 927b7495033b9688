"""When the native kernels are used, why not, and which decode steps are captured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from config_kit import PLATFORM, SOURCE
from gguf.constants import GGMLQuantizationType
from toy_config import LLAMA

from vivace.checkpoint.layouts import StoredKind
from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.config.resolution import resolve
from vivace.models.facts import read_facts
from vivace.platforms.blocks import KEPT, PLAIN
from vivace.platforms.cpu.facts import dtypes
from vivace.worker.captures import DEFAULT_CAPTURE, Captures, choose_captures

BUILT = frozenset({"avx2", "kernels"})
QWEN = {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": None,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def resolved_for(
    argv: str,
    features: frozenset[str] = BUILT,
    model: dict[str, Any] | None = None,
    stored: str = "gguf",
    file: tuple[StoredKind, ...] = (),
) -> Config:
    platform = dataclasses.replace(PLATFORM, features=features, dtypes=dtypes(features))
    config = {**LLAMA, **(model or {})}
    source = dataclasses.replace(SOURCE, format=stored, config=config, stored=file)
    return resolve(parse(argv.split(), {}), source, read_facts(source), platform)


def reasons(config: Config) -> dict[str, str]:
    return {rewrite.field: rewrite.reason for rewrite in config.rewrites}


def test_kernels_are_the_default() -> None:
    config = resolved_for("")
    assert not config.runtime.disable_cpu_kernels and not config.runtime.disable_cuda_graph
    assert {"disable_cpu_kernels", "disable_cuda_graph"}.isdisjoint(reasons(config))


@pytest.mark.parametrize(
    ("argv", "features", "model", "words"),
    [
        ("", frozenset({"avx2"}), {}, ["not built", "compiler", "`vivace doctor`"]),
        ("--model-impl transformers", BUILT, {}, ["--model-impl transformers"]),
        ("", BUILT, {"head_dim": 8}, ["heads of 16", "not 8"]),
        ("", BUILT, {"head_dim": 272}, ["256", "not 272"]),
        ("", BUILT, {"intermediate_size": 127}, ["even number"]),
        ("", BUILT, {**QWEN, "moe_intermediate_size": 33}, ["even number"]),
        ("", BUILT, {**QWEN, "shared_expert_intermediate_size": 33}, ["even number"]),
        ("", BUILT, {**DEEPSEEK, "kv_lora_rank": 33}, ["even number"]),
        ("", BUILT, {**DEEPSEEK, "q_lora_rank": 33}, ["even number"]),
    ],
)
def test_torch_is_used_instead_with_a_reason_that_is_shown(
    argv: str, features: frozenset[str], model: dict[str, Any], words: list[str]
) -> None:
    config = resolved_for(argv, features, model)
    assert config.runtime.disable_cpu_kernels and config.runtime.disable_cuda_graph
    shown = reasons(config)
    assert all(word in shown["disable_cpu_kernels"] for word in words), shown
    assert "cannot be captured" in shown["disable_cuda_graph"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("hardware", [True, False])
def test_types_that_the_cpu_does_not_multiply_are_remarked_on(dtype: str, hardware: bool) -> None:
    argv = f"--dtype {dtype} --disable-cpu-kernels"
    features = BUILT | {"avx512_bf16"} if hardware else BUILT
    slow = not hardware and dtype != "float32"
    config = resolved_for(argv, features)
    assert any("no instructions for it" in notice for notice in config.notices) == slow
    by_kernels = resolved_for(f"--dtype {dtype}", features)
    assert not any("no instructions" in notice for notice in by_kernels.notices)


def test_switched_off_by_hand_needs_no_reason() -> None:
    config = resolved_for("--disable-cpu-kernels --disable-cuda-graph")
    assert config.runtime.disable_cpu_kernels
    assert {"disable_cpu_kernels", "disable_cuda_graph"}.isdisjoint(reasons(config))


def test_eager_kernels() -> None:
    config = resolved_for("--disable-cuda-graph")
    assert not config.runtime.disable_cpu_kernels and config.runtime.disable_cuda_graph


@pytest.mark.parametrize(
    "argv", ["--cuda-graph-bs 4 0", "--cuda-graph-bs -1", "--cuda-graph-max-bs 0"]
)
def test_sizes_that_cannot_be(argv: str) -> None:
    with pytest.raises(ConfigError, match=argv.split()[0]):
        resolved_for(argv)


@pytest.mark.parametrize(
    ("argv", "rows", "expected"),
    [
        ("", 1000, Captures((DEFAULT_CAPTURE,))),
        ("", 24, Captures((24,))),
        ("--cuda-graph-max-bs 8", 24, Captures((8,))),
        ("--cuda-graph-bs 1 4 16", 24, Captures((1, 4, 16))),
        ("--cuda-graph-bs 1 4 16", 8, Captures((1, 4))),
        ("--cuda-graph-bs 16", 8, Captures((8,))),
        ("--cuda-graph-bs 4 300", 400, Captures((4, 300))),
        ("--cuda-graph-bs 1 4 16 --cuda-graph-max-bs 4", 24, Captures((1, 4))),
        ("--disable-cuda-graph-padding", 3, Captures((1, 2, 3), exact=True)),
        (
            "--disable-cuda-graph-padding --cuda-graph-max-bs 2",
            24,
            Captures((1, 2), exact=True),
        ),
        ("--disable-cuda-graph-padding --cuda-graph-bs 2 8", 24, Captures((2, 8), exact=True)),
        ("--disable-cuda-graph", 24, Captures()),
        ("--disable-cuda-graph --cuda-graph-bs 1 2", 24, Captures()),
        ("--disable-cpu-kernels", 24, Captures()),
    ],
)
def test_capture_sizes(argv: str, rows: int, expected: Captures) -> None:
    found = choose_captures(resolved_for(argv), rows)
    assert (found.sizes, found.exact) == (expected.sizes, expected.exact)


@pytest.mark.parametrize("scheme", ["w8a8_int8", "w8a16"])
def test_int8_says_what_it_does_to_the_weights(scheme: str) -> None:
    (notice,) = resolved_for(f"--quantization {scheme}").notices
    assert notice.startswith(f"--quantization {scheme}: ") and "head stay as stored" in notice


def test_int8_needs_operations_of_ours() -> None:
    with pytest.raises(ConfigError, match="w8a16: --model-impl transformers"):
        resolved_for("--quantization w8a16 --model-impl transformers")


@pytest.mark.parametrize(
    ("argv", "features", "stored", "chosen", "words"),
    [
        ("", BUILT, "gguf", "int8", "float is more exact"),
        ("--quantization gguf", BUILT, "gguf", "int8", "float is more exact"),
        ("", BUILT, "safetensors", "float", "this is a safetensors model"),
        ("", frozenset({"avx2"}), "gguf", "float", "only the native CPU kernels"),
        ("--disable-cpu-kernels", BUILT, "gguf", "float", "only the native CPU kernels"),
        ("--quantization w8a16", BUILT, "gguf", "float", "--quantization w8a16 says"),
    ],
)
def test_activations_of_blocks_are_int8_where_kernels_take_them(
    argv: str, features: frozenset[str], stored: str, chosen: str, words: str
) -> None:
    config = resolved_for(argv, features, stored=stored)
    assert config.quantization.activation_dtype == chosen
    assert words in reasons(config)["activation_dtype"]


def of_kinds(argv: str, *kinds: str) -> Config:
    stored = tuple(
        StoredKind(kind=kind, nbytes=17_000_000, numbers=32_000_000, in_layers=True)
        for kind in kinds
    )
    return resolved_for(argv, file=stored)


def test_blocks_that_no_kernel_reads_are_told() -> None:
    """The memory they take, and that nothing is multiplied with int8."""
    config = of_kinds("--dtype bfloat16", "iq4_nl", "f32")
    (notice,) = config.notices
    assert notice.startswith("IQ4_NL matrices, 17.00 MB in the file, are decoded to bfloat16")
    assert "take 64.00 MB" in notice and "Q4_0" in notice
    assert config.quantization.activation_dtype == "float"
    assert "this file has IQ4_NL, F32" in reasons(config)["activation_dtype"]
    with pytest.raises(ConfigError, match=r"--activation-dtype int8: .* IQ4_NL"):
        of_kinds("--activation-dtype int8", "iq4_nl")


@pytest.mark.parametrize("kind", [kind.name.lower() for kind in GGMLQuantizationType])
def test_every_type_of_gguf_is_read_as_stored_or_told(kind: str) -> None:
    def told(argv: str) -> bool:
        return any("in the file, are decoded" in note for note in of_kinds(argv, kind).notices)

    assert told("--dtype bfloat16") == (kind not in (*KEPT, *PLAIN))
    assert told("--dtype bfloat16 --disable-cpu-kernels") == (kind not in PLAIN)
    assert of_kinds("", "q4_k", kind).quantization.activation_dtype == "int8"


def test_activations_as_asked() -> None:
    assert resolved_for("--activation-dtype float").quantization.activation_dtype == "float"
    assert resolved_for("--activation-dtype int8").quantization.activation_dtype == "int8"
    for argv in ("--disable-cpu-kernels", "--quantization w8a8_int8"):
        with pytest.raises(ConfigError, match="--activation-dtype int8: "):
            resolved_for(f"--activation-dtype int8 {argv}")
    with pytest.raises(ConfigError, match=r"auto, .*, int8"):
        resolved_for("--activation-dtype int4")
