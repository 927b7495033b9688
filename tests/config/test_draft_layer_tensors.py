"""Tensors of a model's own layer for drafts: what files lack is found before weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_head_toys import HEADS, HIDDEN, NEXTN, VOCABULARY, ReferenceNextn, export_layer, rewrite
from safetensors.torch import load_file, save_file
from served_toy import write_byte_tokenizer
from toy_models import make

from vivace.checkpoint.source import locate
from vivace.config.draft_heads import head_behind
from vivace.config.draft_tensors import check_layer_tensors, nextn_layer
from vivace.config.parsing import from_arguments
from vivace.deploy.own_checks import StartMessage, said_of_model, why_model_refused
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.models.facts import read_facts

SHAPE = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped": ("Glm4Moe", {"attention_bias": True, "use_qk_norm": True}),
    "latent": ("DeepseekV3", {"attention_bias": True}),
    "latent without ranks": ("DeepseekV3", {"q_lora_rank": None}),
    "beside": ("Qwen3Next", {"attention_bias": True}),
}
STEM = {"Glm4Moe": "model.layers.4.", "DeepseekV3": "model.layers.4.", "Qwen3Next": "mtp."}
UNREAD = ("embed_tokens.weight", "shared_head.head.weight")
"""the model's own are used"""


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = dict[str, Path]()
    for name, (kind, settings) in KINDS.items():
        folder = made[name] = tmp_path_factory.mktemp(kind)
        shape = {**SHAPE, "num_hidden_layers": 4, **NEXTN[kind], **settings}
        ReferenceNextn(make(kind, folder, **shape), folder)
        write_byte_tokenizer(folder)
    return made


@pytest.mark.parametrize("name", KINDS)
def test_all_tensors_are_known_by_their_shapes(name: str, toys: dict[str, Path]) -> None:
    stem = STEM[KINDS[name][0]]
    known = dict(nextn_layer(read_facts(locate(str(toys[name]))), stem))
    saved = load_file(toys[name] / "model.safetensors")
    own = {each: tuple(one.shape) for each, one in saved.items() if each.startswith(stem)}
    assert known == {each: one for each, one in own.items() if not each.endswith(UNREAD)}


def refused(folder: Path, *words: str) -> None:
    """The start says these words, and a check the same."""
    options = from_arguments(model_path=str(folder), speculative_algorithm="NEXTN")
    with pytest.raises(CannotStart) as raised:
        configure(options)
    (found,) = why_model_refused(options, layout_known=True, steps_known=True)
    assert str(raised.value).endswith(found)
    assert not [word for word in words if word not in found], found


@pytest.mark.parametrize("name", KINDS)
def test_each_of_them_is_looked_for(name: str, toys: dict[str, Path], tmp_path: Path) -> None:
    source = locate(str(toys[name]))
    facts = read_facts(source)
    head = head_behind(source, facts, each=False).head
    assert head is not None
    saved = load_file(toys[name] / "model.safetensors")
    file = tmp_path / "model.safetensors"
    for each, shape in nextn_layer(facts, STEM[KINDS[name][0]]):
        if ".experts." in each and ".experts.3." not in each:
            continue
        for damaged in ({}, {each: torch.zeros(shape[0] + 1, *shape[1:])}):
            save_file({**{n: one for n, one in saved.items() if n != each}, **damaged}, file)
            broken = locate(str(rewritten(toys[name], tmp_path)))
            with pytest.raises(CannotStart) as raised:
                check_layer_tensors(broken, facts, head)
            said = str(raised.value)
            assert str(tmp_path) in said and each.removesuffix(".weight") in said
            assert str(list(shape)) in said or not damaged
            assert not damaged or str([shape[0] + 1, *shape[1:]]) in said


def rewritten(toy: Path, folder: Path) -> Path:
    (folder / "config.json").write_text((toy / "config.json").read_text())
    return folder


def test_the_start_and_a_check_say_the_same(toys: dict[str, Path], tmp_path: Path) -> None:
    lost = "mtp.layers.0.mlp.experts.2.up_proj.weight"
    rewrite(toys["beside"], tmp_path, lambda name: None if name == lost else name)
    write_byte_tokenizer(tmp_path)
    refused(tmp_path, lost, "[48, 64]", str(tmp_path), "NGRAM")


def test_numbers_of_another_type_are_refused(toys: dict[str, Path], tmp_path: Path) -> None:
    saved = rewrite(toys["beside"], tmp_path)
    counts = {"mtp.fc.weight": saved["mtp.fc.weight"].to(torch.int32)}
    save_file({**saved, **counts}, tmp_path / "model.safetensors")
    write_byte_tokenizer(tmp_path)
    refused(tmp_path, "mtp.fc.weight", "I32", "BF16")


def test_an_index_names_files_that_lack_a_tensor(toys: dict[str, Path], tmp_path: Path) -> None:
    saved = load_file(toys["beside"] / "model.safetensors")
    lost, parts = "mtp.layers.0.self_attn.q_proj.weight", ("one.safetensors", "two.safetensors")
    places = {name: parts[name.startswith("mtp.")] for name in saved}
    for part in parts:
        held = {name: one for name, one in saved.items() if places[name] == part and name != lost}
        save_file(held, tmp_path / part)
    index = {"metadata": {}, "weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    write_byte_tokenizer(rewritten(toys["beside"], tmp_path))
    refused(tmp_path, str(tmp_path / parts[1]), lost, "[2048, 64]")
    (tmp_path / parts[1]).unlink()
    refused(tmp_path, parts[1], "missing", "fetch")


def test_a_layer_that_was_saved_alone_is_whole(toys: dict[str, Path], tmp_path: Path) -> None:
    exported, lost = tmp_path / "alone", "self_attn.kv_b_proj.weight"
    export_layer(toys["latent"], exported, 4)
    flags = {"speculative_algorithm": "NEXTN", "speculative_draft_model_path": str(exported)}
    options = from_arguments(model_path=str(toys["latent"]), **flags)
    assert configure(options).draft is not None
    rewrite(exported, exported, lambda name: None if name.endswith(lost) else name)
    with pytest.raises(CannotStart, match="kv_b_proj"):
        configure(options)


@pytest.mark.parametrize("lost", ["mtp.layers.0.mlp.experts.1.down_proj.", "mtp.norm."])
def test_quantized_files_have_something_of_each(
    lost: str, toys: dict[str, Path], tmp_path: Path
) -> None:
    """However a format stores it."""
    stored = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
    }
    rewrite(toys["beside"], tmp_path, quantization_config=stored)
    write_byte_tokenizer(tmp_path)
    options = from_arguments(model_path=str(tmp_path), speculative_algorithm="NEXTN")
    assert configure(options).draft is not None
    rewrite(tmp_path, tmp_path, lambda name: None if name.startswith(lost) else name)
    refused(tmp_path, lost)


@pytest.mark.parametrize("named", ["num_nextn_predict_layers", "mtp.layers.1"])
def test_layers_that_nobody_uses_are_told(
    named: str, toys: dict[str, Path], tmp_path: Path
) -> None:
    if "layers.1" in named:
        saved = rewrite(toys["beside"], tmp_path)
        more = {
            name.replace("rs.0", "rs.1"): one + 1 for name, one in saved.items() if "mtp.l" in name
        }
        save_file({**saved, **more}, tmp_path / "model.safetensors")
    else:
        rewrite(toys["beside"], tmp_path, num_nextn_predict_layers=2)
    write_byte_tokenizer(tmp_path)
    flags = {"speculative_algorithm": "NEXTN"}
    for layered in (False, True):
        options = from_arguments(
            model_path=str(tmp_path), enable_multi_layer_eagle=layered, **flags
        )
        (told,) = (one for one in configure(options).notices if "2 layers for drafts" in one)
        said = said_of_model(options, layout_known=True, steps_known=True)
        assert StartMessage(told, False) in list(said) and "see" not in told
    whole = configure(from_arguments(model_path=str(toys["beside"]), **flags)).notices
    assert not any("layers for drafts" in one for one in whole)


def test_a_flag_uses_all_layers_behind_a_model(toys: dict[str, Path], tmp_path: Path) -> None:
    saved = rewrite(toys["grouped"], tmp_path, num_nextn_predict_layers=2)
    more = {n.replace("layers.4.", "layers.5."): one + 1 for n, one in saved.items() if "s.4." in n}
    save_file({**saved, **more}, tmp_path / "model.safetensors")
    write_byte_tokenizer(tmp_path)
    asked = {"model_path": str(tmp_path), "speculative_algorithm": "NEXTN"}
    (told,) = (n for n in configure(from_arguments(**asked)).notices if "layers for drafts" in n)
    assert "--enable-multi-layer-eagle" in told
    used = configure(from_arguments(**asked, enable_multi_layer_eagle=True)).notices
    assert not any("layers for drafts" in one for one in used)


def test_a_model_that_only_attends_has_gates(tmp_path: Path) -> None:
    """Qwen3-Next's queries have them whatever its other layers are."""
    shape = {**SHAPE, **NEXTN["Qwen3Next"], "num_hidden_layers": 2, "head_dim": 16}
    ReferenceNextn(
        make("Qwen3Next", tmp_path, **shape, layer_types=["full_attention"] * 2), tmp_path
    )
    write_byte_tokenizer(tmp_path)
    options = from_arguments(model_path=str(tmp_path), speculative_algorithm="NEXTN")
    assert configure(options).draft is not None
    facts = read_facts(locate(str(tmp_path)))
    saved = load_file(tmp_path / "model.safetensors")
    own = sum(one.numel() for n, one in saved.items() if one.dim() > 1 and "mtp." not in n)
    assert facts.parameters == own
