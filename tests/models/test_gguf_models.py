"""Models from GGUF files: every family's conversion undone, every block type read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_mixture_toys import FileLayout
from gguf_toys import K_SCALES, rounded, write, write_shape, write_tensor
from mutations import gguf_bytes
from paged_model import PagedModel, load
from thread_ranks import ThreadRanks
from toy_models import GROUPED, LATENT, make, reference, tokens

from vivace.checkpoint.gguf_config import ARCHITECTURES
from vivace.checkpoint.gguf_file import GGUFFile
from vivace.checkpoint.source import SourceError, locate
from vivace.checkpoint.weights import CheckpointError
from vivace.models.facts import read_facts

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
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
    "deepseek-v2": ("DeepseekV2", "deepseek2", LATENT | {
        "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
        "rope_parameters": YARN}),
    "deepseek-v2-lite": ("DeepseekV2", "deepseek2", LATENT | {
        "q_lora_rank": None, "n_shared_experts": 2, "v_head_dim": 16}),
    "deepseek-v3": ("DeepseekV3", "deepseek2", LATENT | {
        "n_group": 3, "topk_group": 2, "rope_parameters": YARN}),
    "glm4-moe": ("Glm4Moe", "glm4moe", GROUPED | {
        "head_dim": 16, "n_group": 3, "topk_group": 2, "attention_bias": True}),
    "glm4-moe-normed": ("Glm4Moe", "glm4moe", GROUPED | {
        "head_dim": 32, "use_qk_norm": True, "n_group": 1, "topk_group": 1}),
    "gpt-oss": ("GptOss", "gpt-oss", {
        "sliding_window": 7, "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16}),
    "llama4": ("Llama4Text", "llama4", {
        "head_dim": 16, "num_local_experts": 4, "intermediate_size_mlp": 112,
        "interleave_moe_layer_step": 2, "num_hidden_layers": 4}),
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


WHOLE_BLOCKS = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
INSIDE = {"moe_intermediate_size": 64, "n_routed_experts": 4}
WIDE_LATENT = LATENT | INSIDE | {
    "num_key_value_heads": 4, "q_lora_rank": 32, "qk_nope_head_dim": 32, "n_group": 2,
    "topk_group": 1, "num_experts_per_tok": 2,
}  # fmt: skip
OF_BLOCKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3-moe": ("Qwen3Moe", "qwen3moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "deepseek-v3": ("DeepseekV3", "deepseek2", WIDE_LATENT),
    "glm4-moe": ("Glm4Moe", "glm4moe", GROUPED | INSIDE | {
        "head_dim": 16, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4}),
    "gpt-oss": ("GptOss", "gpt-oss", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 7}),
    "llama4": ("Llama4Text", "llama4", {
        "head_dim": 16, "num_local_experts": 4, "intermediate_size_mlp": 64}),
}  # fmt: skip
KINDS = {"deepseek-v3": [Kind.Q8_0], "glm4-moe": [Kind.Q4_0], "gpt-oss": [Kind.MXFP4],
         "llama4": [Kind.Q8_0], "qwen3-moe": [Kind.Q4_0, Kind.Q8_0, Kind.MXFP4]}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in OF_BLOCKS for kind in KINDS[name]],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_ranks_read_their_own_rows_of_experts(name: str, kind: Kind, tmp_path: Path) -> None:
    """Blocks of experts, divided inside and by expert; of latents each its own heads."""
    family, architecture, settings = OF_BLOCKS[name]
    theirs = make(family, tmp_path, **WHOLE_BLOCKS | settings)
    file = tmp_path / "toy.gguf"
    write(theirs, file, architecture, kind)
    ids = tokens(15)
    wanted = reference(theirs, ids)
    alone = ThreadRanks(file, 1)
    torch.testing.assert_close(alone.feed(ids, [9, 6]), wanted, rtol=1e-3, atol=1e-3)
    for ep in (1, 2):
        ranks = ThreadRanks(file, 2, ep=ep)
        torch.testing.assert_close(ranks.feed(ids, [9, 6]), wanted, rtol=1e-3, atol=1e-3)
        assert max(ranks.read) < alone.read[0] * 0.7


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0], ids=lambda kind: kind.name)
def test_files_of_older_converters(kind: Kind, tmp_path: Path) -> None:
    """Keys and values of latents in one tensor, heads as the checkpoint has them; and a tensor for
    each expert."""
    theirs = make("DeepseekV3", tmp_path, **WHOLE_BLOCKS | WIDE_LATENT)
    file, ids = tmp_path / "toy.gguf", tokens(15)
    write(theirs, file, "deepseek2", kind, FileLayout(joined_latents=True))
    tree = GGUFFile(file).metadata
    absorbed = {f"deepseek2.attention.{key}": of for key, of in OLDER_HEADS.items()}
    tree = {key: value for key, value in tree.items() if not key.endswith("_mla")} | absorbed
    (tmp_path / "older.gguf").write_bytes(gguf_bytes(tree, GGUFFile(file)))
    wanted = reference(theirs, ids)
    found = PagedModel(load(tmp_path / "older.gguf")).feed("a", ids, [9, 6])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)

    theirs = make("Mixtral", tmp_path, num_local_experts=4, **WHOLE_BLOCKS)
    write(theirs, file, "llama", kind, FileLayout(single_experts=True))
    found = PagedModel(load(file)).feed("a", ids, [9, 6])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-3, atol=1e-3)


OLDER_HEADS = {"head_count_kv": 4, "key_length": 48, "value_length": 32}


def test_keys_of_latents_without_their_values(tmp_path: Path) -> None:
    theirs = make("DeepseekV3", tmp_path, **WHOLE_BLOCKS | WIDE_LATENT)
    file = tmp_path / "toy.gguf"
    write(theirs, file, "deepseek2")
    damaged = tmp_path / "damaged.gguf"
    data = file.read_bytes().replace(b"blk.1.attn_v_b", b"blk.1.attn_v_c")
    damaged.write_bytes(data)
    with pytest.raises(CheckpointError, match="attn_k_b"):
        load(damaged)


def test_draft_layers_of_a_file_are_left_there(tmp_path: Path) -> None:
    """They are counted as blocks."""
    theirs = make("Glm4Moe", tmp_path, **GROUPED, head_dim=16, n_group=1, topk_group=1)
    file, more = tmp_path / "toy.gguf", tmp_path / "more.gguf"
    write(theirs, file, "glm4moe")
    opened = GGUFFile(file)
    keys = {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 1}
    more.write_bytes(gguf_bytes({**opened.metadata, **keys}, opened))
    facts = read_facts(locate(str(more)))
    assert (facts.layers, facts.draft_layers) == (3, 1)
    assert "nextn_predict_layers" in "".join(facts.notices)
    ids = tokens(12)
    found = PagedModel(load(more)).feed("a", ids, [12])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-4, atol=3e-4)
