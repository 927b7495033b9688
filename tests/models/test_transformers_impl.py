"""--model-impl transformers: architectures nobody wrote here, over our paged attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import every_architecture
import pytest
import torch
from paged_model import PagedModel, load, load_traced, traced
from toy_models import make, reference, tokens

import vivace.launch.transformers_process as asking
from vivace.checkpoint.source import SourceError, locate
from vivace.checkpoint.weights import CheckpointError
from vivace.commands import serve as launch
from vivace.errors import CANNOT_START
from vivace.models.transformers_facts import TraceRequest
from vivace.models.transformers_support import read_support
from vivace.models.transformers_trace import CannotTrace, model_class, sliding_window
from vivace.platforms.cache import bytes_per_token

GENERIC: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "mistral-sliding": ("Mistral", {"sliding_window": 7}),
    "gemma2": ("Gemma2", {"sliding_window": 7, "head_dim": 16}),
    "granite": ("Granite", {"attention_multiplier": 0.3, "logits_scaling": 2.0}),
    "cohere": ("Cohere", {"logit_scale": 0.5}),
}
SMALLEST = ("qwen3_moe", "deepseek_v3", "gpt_oss", "gpt2", "opt")
REFUSED = {
    "bert": "mask is neither causal nor a sliding window",
    "bloom": "does not take positions",
    "falcon": "attends by itself",
    "lfm3": "mixes tokens outside of attention",
    "mamba": "keeps a state",
    "minimax": "are no attention",
    "deepseek_v32": "its attention wants indices",
    "doge": "makes masks of its own",
}


@pytest.fixture(autouse=True)
def operations() -> None:
    """Once: transformers brings its own operations."""


@pytest.mark.parametrize("name", GENERIC)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    kind, settings = GENERIC[name]
    theirs = make(kind, tmp_path, **settings)
    ours = PagedModel(load(tmp_path, implementation="transformers"))
    ids, other = tokens(26, 1), tokens(9, 2)
    wanted = reference(theirs, ids)
    first = ours.step({"a": ids[:15], "b": other})
    rest = [ours.step({"a": [token]})["a"] for token in ids[15:]]
    found = torch.cat([first["a"], *rest])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-4)
    torch.testing.assert_close(first["b"], reference(theirs, other), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("model_type", SMALLEST)
def test_files_as_they_are_published_give_equal_tokens(model_type: str, tmp_path: Path) -> None:
    """Names of tensors for each expert, learned positions, latent attention, sinks."""
    assert every_architecture.outcome(model_type, tmp_path) == ""


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_right_is_refused_before_loading(model_type: str, tmp_path: Path) -> None:
    assert REFUSED[model_type] in every_architecture.outcome(model_type, tmp_path)


def test_the_child_process_answers_the_same(tmp_path: Path) -> None:
    make("GptOss", tmp_path, num_local_experts=4, num_experts_per_tok=2, sliding_window=7)
    source = locate(str(tmp_path))
    facts = asking.facts_by_transformers(source)
    assert facts == traced(source)
    assert facts.layer_windows == (7, None, 7)
    assert all(one.sinks for one in facts.attention)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "gpt_oss", "llama"])
def test_facts_say_what_the_pool_keeps_of_a_token(model_type: str, tmp_path: Path) -> None:
    """Latent attention, whose keys are wider than its values, keeps whole heads here."""
    every_architecture.toy(model_type, tmp_path)()
    facts = traced(locate(str(tmp_path)))
    layers = load(tmp_path, implementation="transformers").attention_layers
    full = [one for one in layers if one.window is None]
    assert 4 * facts.kv_elements == bytes_per_token(layers, torch.float32)
    assert 4 * facts.full_kv_elements == bytes_per_token(full, torch.float32)


def test_a_refusal_is_one_line_and_the_exit_code_of_a_bad_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "spawn_engine", lambda argv, memory: None)
    every_architecture.toy("jetmoe", tmp_path)
    argv = ["--model-path", str(tmp_path), "--load-format", "dummy"]
    assert launch.main([*argv, "--model-impl", "transformers"]) == CANNOT_START
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "JetMoe" in one]
    assert "cannot be followed" in line and "docs/models.md" in line


def test_other_results_than_transformers_own_are_not_served(tmp_path: Path) -> None:
    """Whatever the trace might miss is found before the first request."""
    make("Mistral", tmp_path, sliding_window=None)
    source = locate(str(tmp_path))
    facts = traced(source)
    load_traced(source, facts)
    wrong = replace(facts, attention=tuple(replace(one, window=2) for one in facts.attention))
    with pytest.raises(SourceError, match="computes"):
        load_traced(source, wrong)


def test_tensors_that_are_missing_or_left_over_or_of_other_shapes(tmp_path: Path) -> None:
    make("Phi3", tmp_path)
    source = locate(str(tmp_path))
    more = {**source.config, "num_hidden_layers": 4}
    with pytest.raises(CheckpointError, match=r"Phi3.*missing"):
        load(None, implementation="transformers", source=replace(source, config=more))
    fewer = {**source.config, "num_hidden_layers": 2}
    with pytest.raises(CheckpointError, match=r"Phi3.*place"):
        load(None, implementation="transformers", source=replace(source, config=fewer))
    wider = {**source.config, "intermediate_size": 2 * source.config["intermediate_size"]}
    with pytest.raises(CheckpointError, match=r"Phi3.*shapes .*config\.json"):
        load(None, implementation="transformers", source=replace(source, config=wider))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_embeddings_that_grow_are_served_as_far_as_they_do_not(
    kind: str, tmp_path: Path
) -> None:
    make("Llama", tmp_path)
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    rope |= {"original_max_position_embeddings": 32}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8} if kind == "longrope" else {}
    source = locate(str(tmp_path), overrides={"rope_parameters": rope})
    facts = traced(source)
    assert facts.context == 32
    assert "serves 32 of 128 tokens" in facts.notices[0]


@pytest.mark.parametrize(("kind", "longest"), [("linear", 512), ("dynamic", None)])
def test_a_scaling_that_may_be_for_more_is_known(
    kind: str, longest: int | None, tmp_path: Path
) -> None:
    """Of 128 tokens; not where transformers' code stretches all sequences of a step at once."""
    make("Llama", tmp_path)
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    stretch = traced(locate(str(tmp_path), overrides={"rope_parameters": rope})).stretch
    assert (stretch and stretch.longest) == longest


def test_masks_are_read_or_refused() -> None:
    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return k <= q

    assert sliding_window(causal, 100) is None
    assert sliding_window(lambda b, h, q, k: (k <= q) & (k > q - 9), 100) == 9
    for other in (
        lambda b, h, q, k: k >= 0,
        lambda b, h, q, k: (k <= q) & (k // 8 == q // 8),
        lambda b, h, q, k: (k <= q) | (k < 20),
        lambda b, h, q, k: k < q,
    ):
        with pytest.raises(CannotTrace):
            sliding_window(other, 100)


def test_model_type_nobody_knows(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    with pytest.raises(SourceError, match="type 'foo'"):
        load(tmp_path, implementation="transformers", overrides={"model_type": "foo"})


def test_a_class_that_is_no_causal_language_model() -> None:
    with pytest.raises(CannotTrace, match="is LlamaForCausalLM"):
        model_class(TraceRequest("LlamaForSequenceClassification", {"model_type": "llama"}))


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("Llama", tmp_path)
    monkeypatch.setattr(asking, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"pip install transformers$"):
        asking.facts_by_transformers(locate(str(tmp_path)))


def test_a_version_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("Llama", tmp_path)
    monkeypatch.setattr(asking, "version", lambda name: "4.57.6")
    with pytest.raises(SourceError, match=r"5\.4 .*4\.57\.6 .*pip install"):
        asking.facts_by_transformers(locate(str(tmp_path)))


def test_configurations_that_transformers_refuses(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    for change in ({"hidden_act": "quantum"}, {"rope_parameters": [1]}, {"rms_norm_eps": "x"}):
        with pytest.raises(SourceError, match="LlamaForCausalLM") as caught:
            load(tmp_path, implementation="transformers", overrides=change)
        assert str(caught.value).isprintable()


def test_the_table_of_what_was_tried_agrees_with_these_tests() -> None:
    found = {one.model_type: one for one in read_support().models}
    assert all(found[model_type].equal for model_type in SMALLEST)
    assert all(REFUSED[model_type] in found[model_type].refused for model_type in REFUSED)
