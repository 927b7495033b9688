"""What is particular about latent attention: rows that are reordered, stored formats, Kimi-K2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_model import PagedModel, load
from safetensors.torch import load_file, save_file
from toy_models import make, reference, tokens
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

from vivace.checkpoint.row_order import ReorderedRows, halves_first
from vivace.checkpoint.safetensors_files import SafetensorsFiles
from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError, TrackedWeights
from vivace.models.facts import read_facts
from vivace.platforms.ops.elementwise import rotary
from vivace.platforms.ops.stored import int8_rows

LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_group": 3,
    "topk_group": 2,
    "num_mtp_layers": 0,
}
IDS = tokens(21)


def test_halves_turn_as_pairs_do() -> None:
    """Scores of two heads of which the last 8 of 12 numbers are rotated."""
    order = halves_first(24, 12, 8)
    assert order[:12].tolist() == [0, 1, 2, 3, 4, 6, 8, 10, 5, 7, 9, 11]
    assert order[12:].tolist() == [12 + place for place in order[:12].tolist()]
    angles = torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.3, 0.1, 0.05]))
    q, k = torch.randn(2, 1, 2, 5, 8)
    both = torch.cat((angles, angles), -1)[None]
    wanted, other = apply_rotary_pos_emb_interleave(q, k, both.cos(), both.sin())
    table = torch.cat((angles.cos(), angles.sin()), -1)
    halves = order[4:12] - 4
    ours = [one[0, ..., halves].transpose(0, 1).contiguous() for one in (q, k)]
    turned, keys = rotary(*ours, torch.arange(5), table)
    torch.testing.assert_close(
        torch.einsum("thd,shd->hts", turned, keys), (wanted @ other.transpose(2, 3))[0]
    )


def weights(folder: Path, found: dict[str, torch.Tensor]) -> TrackedWeights:
    copies = {name: one.clone() for name, one in found.items()}
    save_file(copies, folder / "model.safetensors")
    reader = SafetensorsFiles((folder / "model.safetensors",))
    return TrackedWeights(reader, tied=False, progress=lambda stage, part: None)


def test_ranges_of_whole_heads_and_scales_of_blocks(tmp_path: Path) -> None:
    rows = torch.arange(384.0)[:, None].expand(384, 2).contiguous()
    scales = torch.arange(3.0)[:, None]
    source = weights(
        tmp_path,
        {
            "q.weight": rows,
            "q.weight_scale_inv": scales,
            "q.qweight": rows,
            "q.zeros": rows,
            "k.bias": scales,
        },
    )
    order = halves_first(384, 192, 64)
    turned = ReorderedRows(source, {"q": order})
    found = turned.take("q.weight", (384, 2), slice(192, 384))
    assert torch.equal(found[:, 0], order[192:].float())
    assert torch.equal(turned.take("q.weight_scale_inv", (3, 1)), scales)
    assert torch.equal(turned.take("k.bias", (3, 1)), scales), "another layer"
    assert torch.equal(turned.take("q.qweight", (384, 2)), rows), "its words are taken apart first"
    ours = turned.row_order("q", slice(192, 384))
    assert ours is not None and torch.equal(ours, order[192:] - 192)
    assert turned.row_order("k", slice(0, 3)) is None
    with pytest.raises(CheckpointError, match="zeros"):
        turned.take("q.zeros", (384, 2))
    crossed = ReorderedRows(source, {"q": halves_first(384, 192, 96)})
    with pytest.raises(CheckpointError, match="weight_scale_inv"):
        crossed.take("q.weight_scale_inv", (3, 1))


def test_int8_layers_are_reordered_with_their_scales(tmp_path: Path) -> None:
    make("DeepseekV3", tmp_path, **LATENT)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    rounded = dict(stored)
    for name in [name for name in stored if "_proj" in name]:
        rows = int8_rows(stored[name])
        rounded[name], stored[name] = rows.dequantize(), rows.numbers
        stored[f"{name}_scale"] = rows.scales[:, None].contiguous()
    save_file(rounded, file)
    wanted = PagedModel(load(tmp_path)).feed("a", IDS, [21])
    save_file(stored, file)
    found = PagedModel(load(tmp_path, quantization="w8a16")).feed("a", IDS, [21])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    theirs = make("DeepseekV3", tmp_path, **LATENT)
    ours = PagedModel(load(tmp_path, dtype=torch.bfloat16), dtype=torch.bfloat16)
    found = ours.feed("a", IDS, [9, *[1] * 12])
    close = torch.nn.functional.cosine_similarity(found, reference(theirs, IDS), dim=-1)
    assert close.mean() > 0.98


def test_kimi_k2_is_deepseek_v3_by_another_name(tmp_path: Path) -> None:
    """With a ramp of YaRN that has no width, as its config.json has it."""
    make("DeepseekV3", tmp_path, **LATENT)
    file = tmp_path / "config.json"
    scaling = {
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "factor": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32,
        "type": "yarn",
    }
    saved = json.loads(file.read_text()) | {"rope_scaling": scaling, "rope_theta": 50000.0}
    del saved["rope_parameters"]
    file.write_text(json.dumps(saved))
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    wanted = reference(theirs, IDS)
    code = {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}
    file.write_text(json.dumps(saved | {"model_type": "kimi_k2", "auto_map": code}))
    facts = read_facts(locate(str(tmp_path)))
    assert (facts.architecture, facts.model_type) == ("DeepseekV3ForCausalLM", "kimi_k2")
    assert len(facts.notices) == 1 and "never run" in facts.notices[0]
    found = PagedModel(load(tmp_path)).feed("a", IDS, [9, 12])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-4)
