"""Models from GGUF files: every family's conversion undone, every block type read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_toys import K_SCALES, rounded, write, write_shape, write_tensor
from paged_model import PagedModel, load
from thread_ranks import ThreadRanks
from toy_models import make, reference, tokens

from vivace.checkpoint.gguf_config import ARCHITECTURES
from vivace.checkpoint.source import SourceError, locate
from vivace.models.facts import read_facts

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("Llama", "llama", {}),
    "llama-tied": ("Llama", "llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", "llama", {"attention_bias": True}),
    "mistral": ("Mistral", "llama", {"sliding_window": 7}),
    "qwen2": ("Qwen2", "qwen2", {}),
    "qwen3": ("Qwen3", "qwen3", {"head_dim": 16}),
    "mixtral": ("Mixtral", "llama", {"num_local_experts": 4}),
    "qwen2-moe": ("Qwen2Moe", "qwen2moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3-moe": ("Qwen3Moe", "qwen3moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "gemma2": ("Gemma2", "gemma2", {"sliding_window": 7, "head_dim": 16,
                                    "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3Text", "gemma3", {"sliding_window": 7, "head_dim": 16,
                                        "query_pre_attn_scalar": 16, "num_hidden_layers": 7}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_transformers(name: str, tmp_path: Path) -> None:
    kind, architecture, settings = FAMILIES[name]
    theirs = make(kind, tmp_path, **settings)
    file = tmp_path / "toy.gguf"
    write(theirs, file, architecture)
    facts = read_facts(locate(str(file)))
    assert facts.architecture == type(theirs).__name__
    assert facts.dtype == "float32"
    assert facts.eos_ids == (2, 7)
    assert facts.layer_windows == read_facts(locate(str(tmp_path))).layer_windows
    ids = tokens(30)
    found = PagedModel(load(file)).feed("a", ids, [13, 16, 1])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-4, atol=3e-4)


def test_every_architecture_is_compared() -> None:
    assert {architecture for _, architecture, _ in FAMILIES.values()} == set(ARCHITECTURES)


def test_types_of_matrices_are_known_before_loading(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4}
    theirs = make("Llama", tmp_path, num_hidden_layers=1, **sizes)
    file = tmp_path / "toy.gguf"
    write(theirs, file, "llama", Kind.MXFP4)
    (stored,) = locate(str(file)).stored
    matrices = [each for each in theirs.parameters() if each.ndim == 2]
    assert (stored.kind, stored.in_layers) == ("mxfp4", True)
    assert stored.numbers == sum(each.numel() for each in matrices)
    assert stored.nbytes == stored.numbers * 17 // 32


ENCODED = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]


@pytest.mark.parametrize("kind", [*ENCODED, *K_SCALES], ids=lambda kind: kind.name)
def test_block_type_equals_transformers(kind: Kind, tmp_path: Path) -> None:
    theirs = make(
        "Llama",
        tmp_path,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    file = tmp_path / "toy.gguf"
    write_rounded(theirs, file, kind)
    facts = read_facts(locate(str(file)))
    assert facts.dtype == ("float16" if kind == Kind.F16 else "bfloat16")
    ids = tokens(12)
    found = PagedModel(load(file)).feed("a", ids, [11, 1])
    wanted = reference(theirs, ids)
    assert wanted.std() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=3e-4)


def write_rounded(model: Any, file: Path, kind: Kind) -> None:
    """Write blocks and give the model the numbers they hold. Rows of q and k are interleaved after
    rounding, so their blocks stay whole."""
    if kind not in K_SCALES:
        write(model, file, "llama", kind)
        return
    writer = gguf.GGUFWriter(str(file), "llama")
    write_shape(writer, model.config)
    for name, parameter in model.named_parameters():
        value = parameter.detach().numpy()
        skewed = ".q_proj." in name or ".k_proj." in name
        plain = value.ndim == 1 or skewed
        write_tensor(writer, name, value, "llama", model.config, Kind.F32 if plain else kind)
        if not plain:
            parameter.data.copy_(parameter.new_tensor(rounded(value, kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_scaling_in_the_metadata(tmp_path: Path) -> None:
    """YaRN keys, and Llama 3's factors as a tensor."""
    theirs = make("Llama", tmp_path)
    scaled = gguf.GGUFWriter(str(tmp_path / "yarn.gguf"), "llama")
    write_shape(scaled, theirs.config)
    scaled.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    scaled.add_rope_scaling_factor(4.0)
    scaled.add_rope_scaling_orig_ctx_len(32)
    finish(scaled, theirs)
    config = locate(str(tmp_path / "yarn.gguf")).config
    assert config["rope_scaling"]["rope_type"] == "yarn"
    assert config["rope_scaling"]["original_max_position_embeddings"] == 32

    again = make(
        "Llama",
        tmp_path / "yarn",
        rope_parameters={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": theirs.config.rope_parameters["rope_theta"],
        },
    )
    again.load_state_dict(theirs.state_dict())
    ids = tokens(40)
    found = PagedModel(load(tmp_path / "yarn.gguf")).feed("a", ids, [40])
    torch.testing.assert_close(found, reference(again, ids), rtol=1e-4, atol=3e-4)


def test_frequency_factors_as_a_tensor(tmp_path: Path) -> None:
    theirs = make("Llama", tmp_path)
    writer = gguf.GGUFWriter(str(tmp_path / "factors.gguf"), "llama")
    write_shape(writer, theirs.config)
    writer.add_tensor("rope_freqs.weight", torch.full((8,), 2.0).numpy())
    finish(writer, theirs)
    linear = make(
        "Llama",
        tmp_path / "linear",
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    )
    linear.load_state_dict(theirs.state_dict())
    ids = tokens(25)
    found = PagedModel(load(tmp_path / "factors.gguf")).feed("a", ids, [25])
    torch.testing.assert_close(found, reference(linear, ids), rtol=1e-4, atol=3e-4)


def test_factors_beside_a_scaling_in_a_gguf_file(tmp_path: Path) -> None:
    """llama.cpp computes both, one after the other."""
    theirs = make("Llama", tmp_path)
    writer = gguf.GGUFWriter(str(tmp_path / "toy.gguf"), "llama")
    write_shape(writer, theirs.config)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(2.0)
    writer.add_tensor("rope_freqs.weight", torch.full((8,), 2.0).numpy())
    finish(writer, theirs)
    with pytest.raises(SourceError, match=r"rope\.scaling\.factor .* 2\.0 .*rope_freqs"):
        locate(str(tmp_path / "toy.gguf"))


def finish(writer: gguf.GGUFWriter, model: Any) -> None:
    for name, parameter in model.named_parameters():
        write_tensor(writer, name, parameter.detach().numpy(), "llama", model.config, Kind.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_unknown_architecture(tmp_path: Path) -> None:
    theirs = make("Llama", tmp_path)
    file = tmp_path / "rwkv.gguf"
    writer = gguf.GGUFWriter(str(file), "rwkv6")
    write_shape(writer, theirs.config)
    finish(writer, theirs)
    with pytest.raises(SourceError, match=r"'rwkv6' .* llama, .*qwen2"):
        locate(str(file))


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0, Kind.MXFP4], ids=lambda kind: kind.name)
def test_ranks_read_their_own_rows_of_experts(kind: Kind, tmp_path: Path) -> None:
    """Blocks of experts, divided inside and by expert."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "head_dim": 16}
    theirs = make("Qwen3Moe", tmp_path, **EXPERTS, **sizes, norm_topk_prob=True)
    file = tmp_path / "toy.gguf"
    write(theirs, file, "qwen3moe", kind)
    ids = tokens(15)
    wanted = reference(theirs, ids)
    alone = ThreadRanks(file, 1)
    torch.testing.assert_close(alone.feed(ids, [9, 6]), wanted, rtol=1e-3, atol=1e-3)
    for ep in (1, 2):
        ranks = ThreadRanks(file, 2, ep=ep)
        torch.testing.assert_close(ranks.feed(ids, [9, 6]), wanted, rtol=1e-3, atol=1e-3)
        assert max(ranks.read) < alone.read[0] * 0.7
