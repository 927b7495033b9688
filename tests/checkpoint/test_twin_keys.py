"""What a configuration says twice: the key that counts is transformers', and both are checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import write_config
from gguf_toys import write as write_gguf
from mutations import gguf_bytes
from paged_model import PagedModel, load
from toy_models import make, reference, tokens
from transformers import AutoConfig, AutoModelForCausalLM

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.gguf_file import GGUFFile
from vivace.checkpoint.source import locate
from vivace.models.facts import ModelFacts, read_facts

LINEAR, YARN = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}
TWINS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dtype": ({"dtype": "float16"}, {"torch_dtype": "float32"}),
    "rope_scaling": (
        {"rope_scaling": LINEAR},
        {"rope_parameters": {**YARN, "original_max_position_embeddings": 16}},
    ),
    "rope_type": (
        {"rope_parameters": {**LINEAR, "type": "dynamic"}},
        {"rope_parameters": {"type": "dynamic"}},
    ),
    "rope_theta": ({"rope_parameters": {"rope_theta": 500.0}}, {"rope_theta": 700.0}),
    "activation": ({"hidden_act": "silu"}, {"hidden_activation": "gelu"}),
    "text_config": ({"text_config": {"mlp_bias": True}}, {"mlp_bias": False}),
    "scaling within": ({"text_config": {"rope_scaling": LINEAR}}, {"rope_scaling": YARN}),
    "ropes within": ({"text_config": {"rope_parameters": LINEAR}}, {"rope_parameters": YARN}),
    "ends within": ({"text_config": {"eos_token_id": 5}}, {"eos_token_id": [5, 6]}),
    "tied within": ({"text_config": {"tie_word_embeddings": True}}, {"tie_word_embeddings": False}),
}
"""(what counts, what has no effect beside it)"""
BAD: dict[str, dict[str, Any]] = {
    "torch_dtype": {"dtype": "float16", "torch_dtype": 7},
    "rope_parameters.factor": {"rope_scaling": LINEAR, "rope_parameters": {**LINEAR, "factor": -1}},
    "rope_parameters": {"rope_scaling": LINEAR, "rope_parameters": [1]},
    "rope_scaling.rope_type": {
        "rope_scaling": {"rope_type": "x"},
        "rope_parameters": {"rope_theta": 5.0},
    },
    "rope_theta": {"rope_parameters": {"rope_theta": 500.0}, "rope_theta": "x"},
    "rope_parameters.type": {"rope_parameters": {**LINEAR, "type": 3}},
    "hidden_activation": {"hidden_act": "silu", "hidden_activation": 0},
    "rms_norm_eps": {"text_config": {"rms_norm_eps": 1e-3}, "rms_norm_eps": -1},
}
"""nonsense in the key that has no effect"""


def facts(folder: Path, changes: dict[str, Any], **overrides: Any) -> ModelFacts:
    write_config(folder, **{"torch_dtype": None, **changes})
    return read_facts(locate(str(folder), load_format="dummy", overrides=overrides))


def values(found: ModelFacts) -> tuple[Any, ...]:
    return found.dtype, found.decoder, found.tied, found.eos_ids


@pytest.mark.parametrize("name", TWINS)
def test_the_key_that_counts_is_used_and_the_other_told(name: str, tmp_path: Path) -> None:
    counts, idle = TWINS[name]
    used = counts if name != "rope_type" else {"rope_parameters": LINEAR}
    alone = facts(tmp_path, {**dict.fromkeys(idle), **used})
    both = facts(tmp_path, {**idle, **counts})
    assert values(both) == values(alone)
    assert not alone.notices and len(both.notices) == 1
    assert all(key in both.notices[0] for key in (*counts, *idle))
    assert both.notices[0].isprintable()


def test_keys_that_agree_are_no_news(tmp_path: Path) -> None:
    same = {"dtype": "float32", "torch_dtype": "torch.float32", "hidden_activation": "swish",
            "hidden_act": "silu", "rope_scaling": {"type": "linear", "factor": 2},
            "rope_theta": 500, "rope_parameters": {**LINEAR, "rope_theta": 500.0}}  # fmt: skip
    assert not facts(tmp_path, same).notices


@pytest.mark.parametrize("place", BAD)
def test_nonsense_is_refused_in_the_key_that_has_no_effect_too(place: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"config\.json: {place} is "):
        facts(tmp_path, BAD[place])


EMPTY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no parameters": ({"rope_scaling": LINEAR}, {"rope_parameters": {}}),
    "no scaling": ({"rope_parameters": LINEAR}, {"rope_scaling": {}}),
    "null": ({"rope_parameters": LINEAR}, {"rope_scaling": None}),
}
"""an object that is there and says nothing, beside the one that counts"""


@pytest.mark.parametrize("name", ["dtype", "rope_scaling", "activation", *EMPTY])
def test_transformers_reads_the_same(name: str, tmp_path: Path) -> None:
    counts, idle = {**TWINS, **EMPTY}[name]
    theirs = make("Llama", tmp_path, max_position_embeddings=64)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    for key in ("dtype", "rope_parameters"):
        del saved[key]
    file.write_text(json.dumps({**saved, "rope_theta": 10000.0, **idle, **counts}))
    config = AutoConfig.from_pretrained(tmp_path)
    if name == "dtype":
        assert read_facts(locate(str(tmp_path))).dtype == str(config.dtype).removeprefix("torch.")
        return
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    ids = tokens(40)
    ours = PagedModel(load(tmp_path)).feed("a", ids, [40])
    assert abs(ours - reference(theirs, ids)).max() < 2e-4
    assert name not in EMPTY or not read_facts(locate(str(tmp_path))).notices


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters", "torch_dtype", "dtype"])
def test_the_command_line_counts_before_the_file(key: str, tmp_path: Path) -> None:
    given = {"rope_scaling": LINEAR, "rope_parameters": LINEAR}.get(key, "float16")
    file = {"rope_scaling": YARN, "rope_parameters": YARN, "rope_theta": 500.0}
    whole = {**file, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    found = facts(tmp_path, {k: v for k, v in whole.items() if k != key}, **{key: given})
    assert found.decoder is not None
    if "dtype" in key:
        assert found.dtype == "float16"
    else:
        assert (found.decoder.rope.kind, found.decoder.rope.theta) == ("linear", 500.0)
    nested = facts(tmp_path, {"text_config": {"rms_norm_eps": 1e-3}}, rms_norm_eps=1e-4)
    assert nested.decoder and nested.decoder.norm_eps == 1e-4


def test_a_scaling_beside_the_newer_spelling_keeps_its_theta(tmp_path: Path) -> None:
    """As people give it on the command line, to a file that transformers 5 wrote."""
    file = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    found = facts(tmp_path, file, rope_scaling=LINEAR)
    assert found.decoder and found.decoder.rope.theta == 500.0
    assert found.decoder.rope.kind == "linear"


def test_layers_that_a_list_and_a_pattern_name(tmp_path: Path) -> None:
    make("Gemma3Text", tmp_path, head_dim=16, sliding_window=7, num_hidden_layers=4)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    saved["layer_types"] = ["full_attention", *["sliding_attention"] * 3]
    for pattern, count in ((6, 1), (None, 0)):
        file.write_text(json.dumps({**saved, "sliding_window_pattern": pattern}))
        found = read_facts(locate(str(tmp_path)))
        assert found.layer_windows == (None, 7, 7, 7) and len(found.notices) == count
    file.write_text(json.dumps({**saved, "sliding_window_pattern": "x"}))
    with pytest.raises(SourceError, match="sliding_window_pattern is"):
        read_facts(locate(str(tmp_path)))


def test_scaling_beside_a_rope_for_each_kind_of_layer(tmp_path: Path) -> None:
    theirs = make("Gemma3Text", tmp_path, head_dim=16, sliding_window=7, num_hidden_layers=7)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    saved["rope_parameters"]["full_attention"] |= {"rope_type": "linear", "factor": 8.0}
    file.write_text(json.dumps({**saved, "rope_scaling": LINEAR, "rope_theta": 700.0}))
    found = read_facts(locate(str(tmp_path)))
    assert found.decoder and found.decoder.rope.scaling == {"factor": 2.0}
    assert [any(key in line for line in found.notices) for key in LINEAR] == [True, True]
    assert len(found.notices) == 2
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    ids = tokens(40)
    ours = PagedModel(load(tmp_path)).feed("a", ids, [40])
    assert abs(ours - reference(theirs, ids)).max() < 2e-4


def test_a_rope_for_each_kind_of_layer_is_refused_where_all_turn_alike(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"config\.json: rope_parameters "):
        facts(tmp_path, {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}})


def test_two_scalings_in_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "toy.gguf"
    write_gguf(make("Llama", tmp_path), file, "llama")
    opened = GGUFFile(file)
    kind, new, old = (
        f"llama.rope.{key}" for key in ("scaling.type", "scaling.factor", "scale_linear")
    )
    for older, count in ((2.0, 0), (4.0, 1)):
        tree = {**opened.metadata, kind: "linear", new: 2.0, old: older}
        file.write_bytes(gguf_bytes(tree, opened))
        found = read_facts(locate(str(file)))
        assert found.decoder and found.decoder.rope.scaling == {"factor": 2.0}
        assert sum(old in line and new in line for line in found.notices) == count


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
        {"rope_parameters": {"full_attention": {"rope_theta": 7e5}}},
        {"rope_local_base_freq": 5000.0},
        {"rope_local_base_freq": 5000.0, "rope_parameters": {"sliding_attention": {}}},
    ],
)
def test_layers_with_a_window_do_not_take_the_base_of_the_others(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    make("Gemma3Text", tmp_path)
    file = tmp_path / "config.json"
    saved = {key: value for key, value in json.loads(file.read_text()).items() if "rope" not in key}
    file.write_text(json.dumps({**saved, "rope_theta": 1e6, **changes}))
    decoder = read_facts(locate(str(tmp_path))).decoder
    assert decoder is not None
    assert decoder.local_rope.theta == changes.get("rope_local_base_freq", 10000.0)
    assert decoder.rope.theta in (1e6, 7e5)


@pytest.mark.parametrize(
    ("key", "causal"), [("use_bidirectional_attention", False), ("is_causal", True)]
)
def test_attention_in_both_directions_is_refused(key: str, causal: bool, tmp_path: Path) -> None:
    """transformers reads the second one for every family: models of embeddings have it."""
    for value in (causal, None):
        assert facts(tmp_path, {key: value}).decoder
    with pytest.raises(SourceError, match=rf"config\.json: {key} "):
        facts(tmp_path, {key: not causal})


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Gemma3Text"])
def test_the_older_spelling_has_no_objects_for_kinds_of_layers(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path)
    scaling = {"full_attention": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(SourceError, match=r"rope_scaling is"):
        read_facts(locate(str(tmp_path), overrides={"rope_scaling": scaling}))
