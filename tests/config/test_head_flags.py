"""Heads that draft: what is refused before weights are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_head_toys import (
    HEADS,
    HIDDEN,
    NEXTN,
    VOCABULARY,
    ReferenceNextn,
    export_layer,
    rewrite,
    write_eagle,
    write_eagle3,
)
from safetensors.torch import save_file
from served_toy import write_byte_tokenizer, write_toy_llama
from toy_models import make

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import ModelSource, locate
from vivace.checkpoint.tensor_headers import StoredTensor, read_draft_ids
from vivace.config.draft_heads import TAPPED, read_head
from vivace.config.draft_models import draft_config
from vivace.config.parsing import from_arguments
from vivace.config.serialize import decode, encode
from vivace.deploy.own_checks import why_model_refused
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.launch.node_hello import differences, hello
from vivace.launch.node_join import own_config
from vivace.models.facts import read_facts

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("target"), layers=8)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    write_eagle3(folder / "EAGLE3", [1, 3, 4])
    write_eagle(folder / "EAGLE", bias=False)
    return {name: folder / name for name in ("EAGLE3", "EAGLE")}


def asked(target: Path, algorithm: str, head: Path) -> dict[str, Any]:
    return {
        "model_path": str(target),
        "speculative_algorithm": algorithm,
        "speculative_draft_model_path": str(head),
    }


def changed(head: Path, folder: Path, **keys: Any) -> Path:
    """The same head with other words about it, and without weights."""
    config = {**json.loads((head / "config.json").read_text()), **keys}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("eagle_config", "taps"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, (2, 4, 5)),
        (None, (2, 4, 5)),
        ({}, (2, 4, 5)),
    ],
)
def test_a_head_says_which_layers_it_reads(
    target: Path, heads: dict[str, Path], eagle_config: Any, taps: tuple[int, ...], tmp_path: Path
) -> None:
    """By default the inputs of the third, the middle and the third last one."""
    head = changed(heads["EAGLE3"], tmp_path, eagle_config=eagle_config)
    options = {**asked(target, "EAGLE3", head), "speculative_draft_load_format": "dummy"}
    found = configure(from_arguments(**options)).draft
    assert found is not None and found.head is not None
    assert (found.head.taps, found.head.vocabulary) == (taps, 120)


@pytest.mark.parametrize(
    ("algorithm", "keys", "word"),
    [
        ("EAGLE3", {"hidden_size": 128}, "hidden size"),
        ("EAGLE3", {"vocab_size": 301}, "vocabulary"),
        ("EAGLE3", {"draft_vocab_size": 301}, "draft_vocab_size"),
        ("EAGLE3", {"num_hidden_layers": 2}, "num_hidden_layers"),
        ("EAGLE3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9, 4]}}, "order"),
        ("EAGLE3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}}, "layers"),
        ("EAGLE3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "all"}}, "eagle_config"),
        ("EAGLE3", {"architectures": ["LlamaForCausalLM"]}, "STANDALONE"),
        ("EAGLE3", {"architectures": None}, "architectures"),
        ("EAGLE3", {"architectures": ["DFlashDraftModel"]}, "block diffusion"),
        ("EAGLE", {"architectures": ["LlamaForCausalLMEagle3"]}, "algorithm EAGLE3"),
        ("EAGLE", {"num_hidden_layers": 2}, "STANDALONE"),
        ("EAGLE", {"hidden_size": 128}, "hidden size"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    target: Path,
    heads: dict[str, Path],
    algorithm: str,
    keys: dict[str, Any],
    word: str,
    tmp_path: Path,
) -> None:
    """By the start and by a check, which has no weights either."""
    head = changed(heads[algorithm], tmp_path, **keys)
    options = from_arguments(
        **asked(target, algorithm, head), speculative_draft_load_format="dummy"
    )
    with pytest.raises(CannotStart, match=word):
        configure(options)
    options = from_arguments(**asked(target, algorithm, head))
    (found,) = why_model_refused(options, layout_known=True, steps_known=True)
    assert word in found


@pytest.mark.parametrize("layers", [4, 6])
def test_there_are_no_usual_layers_of_a_small_model(
    layers: int, heads: dict[str, Path], tmp_path: Path
) -> None:
    small = write_toy_llama(tmp_path / "model", layers=layers)
    rewrite(heads["EAGLE3"], tmp_path / "silent", eagle_config=None)
    said = refused(asked(small, "EAGLE3", tmp_path / "silent"), TAPPED)
    assert f"{layers} layers" in said and " -" not in said
    rewrite(heads["EAGLE3"], tmp_path / "speaking", eagle_config={TAPPED: [-1, 1, layers - 1]})
    draft = configure(from_arguments(**asked(small, "EAGLE3", tmp_path / "speaking"))).draft
    assert draft is not None and draft.head is not None
    assert draft.head.taps == (0, 2, layers)
    rewrite(
        heads["EAGLE3"], tmp_path / "wrong", **{"eagle_config": None, TAPPED: [1, 2, layers + 1]}
    )
    said = refused(asked(small, "EAGLE3", tmp_path / "wrong"), TAPPED)
    assert f"[1, 2, {layers + 1}]" in said and f"from 0 to {layers}" in said


def without(*ends: str) -> Callable[[str], str | None]:
    return lambda name: None if name.endswith(ends) else name


@pytest.mark.parametrize(
    ("named", "keys", "word"),
    [
        (without("d2t"), {}, "d2t"),
        (without("lm_head.weight"), {}, "lm_head"),
        (without("fc.weight"), {}, "fc"),
        (without("hidden_norm.weight"), {}, "hidden_norm"),
        (str, {"draft_vocab_size": 100}, "d2t"),
        (str, {"intermediate_size": 128}, "gate_proj"),
        (str, {"eagle_config": {TAPPED: [1, 3]}}, "fc"),
        (str, {"target_hidden_size": 128}, "target_hidden_size"),
        (str, {"target_hidden_size": 64, "hidden_size": 32}, "shape"),
        (str, {"norm_before_fc": True}, "norm_before_fc"),
        (str, {"draft_vocab_size": 0}, "Correct"),
        (str, {"eagle_config": []}, "Correct"),
        (
            without("lm_head.weight", "d2t"),
            {"draft_vocab_size": None, "tie_word_embeddings": True},
            "tie_word_embeddings",
        ),
    ],
)
def test_what_files_of_a_head_say_is_read_before_weights(
    target: Path,
    heads: dict[str, Path],
    named: Callable[[str], str | None],
    keys: dict[str, Any],
    word: str,
    tmp_path: Path,
) -> None:
    """By the start and by a check. No flag changes a head's configuration."""
    rewrite(heads["EAGLE3"], tmp_path / "head", named, **keys)
    refused(asked(target, "EAGLE3", tmp_path / "head"), word)


@pytest.mark.parametrize(
    ("named", "keys", "word"),
    [
        (without("embed_tokens.weight"), {}, "embed_tokens"),
        (without("lm_head.weight", "d2t"), {"draft_vocab_size": None}, "lm_head"),
        (str, {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        (str, {"target_hidden_size": None}, "hidden size"),
    ],
)
def test_a_head_of_another_width_has_what_it_needs(
    target: Path,
    named: Callable[[str], str | None],
    keys: dict[str, Any],
    word: str,
    tmp_path: Path,
) -> None:
    write_eagle3(tmp_path / "narrow", [1, 3, 4], hidden=48)
    draft = configure(from_arguments(**asked(target, "EAGLE3", tmp_path / "narrow"))).draft
    assert draft is not None and draft.head is not None and draft.head.own_embedding
    rewrite(tmp_path / "narrow", tmp_path / "lacking", named, **keys)
    refused(asked(target, "EAGLE3", tmp_path / "lacking"), word)


def test_a_head_of_llama_4_is_a_llama(target: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    keys: dict[str, Any] = {"intermediate_size": 48, "intermediate_size_mlp": 96}
    rewrite(heads["EAGLE3"], tmp_path, **keys, model_type="llama4_text")
    draft = configure(from_arguments(**asked(target, "EAGLE3", tmp_path))).draft
    assert draft is not None and draft.facts.intermediate_size == 96


def test_a_head_of_the_library_speculators(
    target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    """Its names of tensors are vLLM's, which tests/equivalence/test_draft_heads.py computes."""
    rewrite(heads["EAGLE3"], tmp_path, lambda name: name.replace("midlayer.", "layers.0."))
    layer = json.loads((tmp_path / "config.json").read_text())
    outer = {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": 120,
        "transformer_layer_config": {**layer, "draft_vocab_size": 1, "eagle_config": None},
        TAPPED: [1, 4, 8],
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    draft = configure(from_arguments(**asked(target, "EAGLE3", tmp_path))).draft
    assert draft is not None and draft.head is not None and draft.head.norm_before_residual
    assert (draft.head.taps, draft.head.vocabulary) == ((1, 4, 8), 120)


def refused(asked_for: dict[str, Any], word: str) -> str:
    """What the start says, and a check."""
    options = from_arguments(**asked_for)
    with pytest.raises(CannotStart, match=word) as raised:
        configure(options)
    assert "override" not in str(raised.value)
    (found,) = why_model_refused(options, layout_known=True, steps_known=True)
    assert word in found and str(raised.value).endswith(found)
    return found


@pytest.mark.parametrize("offsets", ["absolute", "negative", "far", "floats"])
def test_a_vocabulary_s_map_stays_in_it(
    target: Path, heads: dict[str, Path], offsets: str, tmp_path: Path
) -> None:
    weights = rewrite(heads["EAGLE3"], tmp_path / "head")
    found = weights["d2t"]
    weights["d2t"] = {
        "absolute": found + torch.arange(len(found)),
        "negative": -1 - torch.arange(len(found)),
        "far": found + (1 << 40),
        "floats": found.float(),
    }[offsets]
    save_file(weights, tmp_path / "head" / "model.safetensors")
    word = "integers" if offsets == "floats" else "offsets"
    refused(asked(target, "EAGLE3", tmp_path / "head"), word)


def test_files_that_are_cut_are_found_before_weights(
    target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    for algorithm, draft in (("EAGLE3", heads["EAGLE3"]), ("STANDALONE", target)):
        copy = shutil.copytree(draft, tmp_path / algorithm)
        file = copy / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        refused(asked(target, algorithm, copy), "truncated")


def test_layers_for_drafts_that_were_saved_alone_or_dropped(tmp_path: Path) -> None:
    """A path names a whole model, with EAGLE too, or what SGLang exports of one."""
    whole = tmp_path / "whole"
    ReferenceNextn(make("DeepseekV3", whole, **SHAPE, **NEXTN["DeepseekV3"]), whole)
    write_byte_tokenizer(whole)
    exported = tmp_path / "exported"
    export_layer(whole, exported, 2)
    for algorithm in ("NEXTN", "EAGLE"):
        for path, first in ((whole, 2), (exported, 0)):
            draft = configure(from_arguments(**asked(whole, algorithm, path))).draft
            assert draft is not None and draft.head is not None
            assert (draft.head.behind, draft.head.first_layer) == (1, first)
    other = rewrite(exported, tmp_path / "other", architectures=["Glm4MoeForCausalLMNextN"])
    assert other
    refused(asked(whole, "NEXTN", tmp_path / "other"), "Glm4Moe")
    rewrite(exported, tmp_path / "wide", hidden_size=32)
    refused(asked(whole, "NEXTN", tmp_path / "wide"), "hidden")
    rewrite(whole, tmp_path / "dropped", lambda name: None if ".layers.2." in name else name)
    write_byte_tokenizer(tmp_path / "dropped")
    refused({"model_path": str(tmp_path / "dropped"), "speculative_algorithm": "NEXTN"}, "eh_proj")


def test_a_layer_of_the_model_s_own_is_quantized_with_it(tmp_path: Path) -> None:
    """Also in processes that are sent the configuration."""
    make("Glm4Moe", tmp_path, **NEXTN["Glm4Moe"])
    write_byte_tokenizer(tmp_path)
    options = from_arguments(
        model_path=str(tmp_path),
        speculative_algorithm="NEXTN",
        load_format="dummy",
        quantization="w8a8_int8",
    )
    config = configure(options)
    for one in (config, decode(encode(config))):
        assert draft_config(one).quantization.quantization == "w8a8_int8"


def test_each_node_reads_the_draft_that_it_was_given(
    target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    """And what the engine says of its shape."""
    mine = configure(from_arguments(**asked(target, "EAGLE", heads["EAGLE"])))
    (tmp_path / "map.json").write_text("[1, 2]")
    copy = shutil.copytree(heads["EAGLE"], tmp_path / "head")
    options = asked(target, "EAGLE", copy), {"speculative_token_map": str(tmp_path / "map.json")}
    engine = configure(from_arguments(**options[0], **options[1]))
    found = own_config(mine, encode(engine)).draft
    assert found is not None and found.head is not None
    assert (found.source.path, found.head.ids) == (heads["EAGLE"], (1, 2))


def test_heads_do_not_draft_for_every_family(heads: dict[str, Path], tmp_path: Path) -> None:
    make("Gemma2", tmp_path, vocab_size=300, hidden_size=96, head_dim=16)
    with pytest.raises(CannotStart, match="Gemma2ForCausalLM"):
        configure(from_arguments(**asked(tmp_path, "EAGLE3", heads["EAGLE3"])))


def test_a_layer_of_the_model_s_own_drafts(target: Path, tmp_path: Path) -> None:
    """NEXTN, and EAGLE without another path; where there is one. Its weights may be elsewhere."""
    with pytest.raises(CannotStart, match="num_nextn_predict_layers"):
        configure(from_arguments(model_path=str(target), speculative_algorithm="NEXTN"))
    make("Glm4Moe", tmp_path, **NEXTN["Glm4Moe"])
    write_byte_tokenizer(tmp_path)
    for algorithm in ("NEXTN", "EAGLE"):
        options = from_arguments(
            model_path=str(tmp_path),
            speculative_algorithm=algorithm,
            speculative_draft_load_format="gguf",
            load_format="dummy",
        )
        config = configure(options)
        assert any("without --speculative-draft-model-path" in each for each in config.notices)
        assert config.draft is not None and config.draft.source is config.source
        assert config.draft.head is not None and config.draft.head.behind
        assert config.draft_width == 3
        assert not any("not loaded" in notice for notice in config.notices)
        assert not list(why_model_refused(options, layout_known=True, steps_known=True))
    options = from_arguments(model_path=str(target), speculative_algorithm="NEXTN")
    (found,) = why_model_refused(options, layout_known=True, steps_known=True)
    assert "num_nextn_predict_layers" in found
    plain = configure(from_arguments(model_path=str(tmp_path)))
    assert any("not loaded" in notice for notice in plain.notices)


def test_a_layer_for_each_draft(target: Path, tmp_path: Path, heads: dict[str, Path]) -> None:
    """As many drafts as layers, chains; other drafters have none."""
    make("Glm4Moe", tmp_path, **{**NEXTN["Glm4Moe"], "num_nextn_predict_layers": 2})
    write_byte_tokenizer(tmp_path)
    layered = {"speculative_algorithm": "NEXTN", "enable_multi_layer_eagle": True}
    own = {"model_path": str(tmp_path), "load_format": "dummy", **layered}
    config = configure(from_arguments(**own))
    assert config.draft is not None and config.draft.head is not None
    assert (config.draft.head.behind, config.draft_width) == (2, 2)
    assert configure(from_arguments(**own, speculative_num_steps=1)).draft_width == 1
    for wrong, word in (
        ({"speculative_num_steps": 3}, "layers"),
        ({"speculative_num_draft_tokens": 4}, "layers"),
        ({"speculative_eagle_topk": 2}, "chains"),
    ):
        options = from_arguments(**own, **wrong)
        with pytest.raises(CannotStart, match=word):
            configure(options)
        (found,) = why_model_refused(options, layout_known=True, steps_known=True)
        assert word in found
    other = asked(target, "EAGLE3", heads["EAGLE3"])
    told = configure(from_arguments(**other, enable_multi_layer_eagle=True)).notices
    assert any("--enable-multi-layer-eagle has no effect" in notice for notice in told)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("map.pt", "[1]", "pickled"),
        ("map.json", "[1, 300]", "299"),
        ("map.json", "[]", "299"),
        ("map.json", "[true]", "299"),
        ("map.json", "{", "JSON"),
        ("map.safetensors", "[1]", "map"),
        ("missing/map.json", None, "such"),
        (".", None, "folder"),
        ("a" * 300, None, "long"),
    ],
)
def test_a_token_map_is_read_before_weights(
    target: Path, heads: dict[str, Path], name: str, content: str | None, word: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    asked_for = {**asked(target, "EAGLE", heads["EAGLE"]), "speculative_token_map": str(file)}
    with pytest.raises(CannotStart, match=word):
        configure(from_arguments(**asked_for))


def test_a_token_map_has_no_effect_on_heads_with_tokens_of_their_own(
    target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "map.json"
    file.write_text("[1, 2]")
    for algorithm, effect in (("EAGLE3", False), ("EAGLE", True)):
        options = {**asked(target, algorithm, heads[algorithm]), "speculative_token_map": str(file)}
        config = configure(from_arguments(**options))
        assert any("token-map" in notice for notice in config.notices) is not effect
        assert config.draft is not None and config.draft.head is not None
        assert (config.draft.head.ids == (1, 2)) is effect


def test_nodes_compare_the_files_of_drafts(
    target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    head = shutil.copytree(heads["EAGLE"], tmp_path / "head")
    plain = hello(configure(from_arguments(model_path=str(target))))
    drafting = hello(configure(from_arguments(**asked(target, "EAGLE", head))))
    own = {name for name in drafting.files if name.startswith("draft: ")}
    assert own and drafting.files.keys() - own == plain.files.keys()
    (head / "model.safetensors").rename(head / "model-1.safetensors")
    other = hello(configure(from_arguments(**asked(target, "EAGLE", head))))
    assert any("model is another" in line for line in differences(1, other, drafting))


def test_a_gguf_file_is_a_whole_model(target: Path) -> None:
    facts = read_facts(locate(str(target)))
    source = ModelSource(path=target, format="gguf", files=(), tokenizer_path=target)
    with pytest.raises(SourceError, match="STANDALONE"):
        read_head("EAGLE3", source, facts)


def test_a_map_of_another_size_is_not_read(tmp_path: Path) -> None:
    """It is refused by its header: there is no such file."""
    source = ModelSource(path=tmp_path, format="safetensors", files=(), tokenizer_path=tmp_path)
    stored = {"d2t": StoredTensor(tmp_path / "nowhere", "d2t", (1 << 40,), "I64")}
    with pytest.raises(SourceError, match="draft_vocab_size"):
        read_draft_ids(source.path, stored, 100, 300)
