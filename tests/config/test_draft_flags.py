"""Flags of speculative decoding."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served_toy import write_toy_llama

from vivace.config.config import Options
from vivace.config.draft_flags import OF_ALL, OF_MODELS, READ, idle_drafts, speculation
from vivace.config.drafts import EAGLE3, NEXTN, NGRAM, corpus, drafts, trees
from vivace.config.errors import ConfigError
from vivace.config.parsing import from_arguments
from vivace.config.speculative import SpeculativeOptions
from vivace.deploy.own_checks import why_model_refused
from vivace.engine.settings import engine_settings
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.protocol.messages import Capacity
from vivace.worker.drafters.build import (
    accept_thresholds,
    choose_search,
    ngram_breadth,
    ngram_settings,
)
from vivace.worker.drafters.ngram import Breadth
from vivace.worker.drafters.relaxed import AcceptThresholds
from vivace.worker.drafters.searches import TreeSearch

TOKEN_MAP = ["speculative_token_map"]
CORPUS = ["speculative_ngram_external_corpus_path"]
CAPACITY = Capacity(pages=100, page_size=4, rows=32, context=128, vocabulary=50)


@pytest.mark.parametrize(("asked", "width"), [({}, 11), ({"speculative_num_draft_tokens": 5}, 4)])
@pytest.mark.parametrize("fixed", [False, True])
def test_the_engine_gets_the_width(asked: dict[str, int], width: int, fixed: bool) -> None:
    config = configure(
        from_arguments(speculative_algorithm="NGRAM", speculative_fixed_width=fixed, **asked)
    )
    settings = engine_settings(config, CAPACITY)
    assert (settings.num_speculative_tokens, settings.fixed_draft_width) == (width, fixed)
    told = [each for each in config.rewrites if each.field == "speculative_num_draft_tokens"]
    assert bool(told) == (not asked)


def test_without_an_algorithm_there_are_no_drafts_and_flags_of_them_say_so() -> None:
    config = configure(from_arguments(speculative_num_draft_tokens=5))
    assert config.draft_width == 0
    assert any("--speculative-num-draft-tokens has no effect" in each for each in config.notices)


@pytest.mark.parametrize(
    ("algorithm", "given", "idle"),
    [
        (NGRAM, dict.fromkeys(OF_MODELS, 3), OF_MODELS),
        (NGRAM, {"speculative_token_map": "nofile"}, ["speculative_token_map"]),
        (EAGLE3, {"speculative_token_map": "a.json", "speculative_num_steps": 2}, TOKEN_MAP),
        (EAGLE3, {"speculative_ngram_external_corpus_path": "/nowhere"}, CORPUS),
        (NEXTN, {"speculative_token_map": "a.json", "speculative_eagle_topk": 2}, ()),
        (NEXTN, {"speculative_draft_load_format": "gguf"}, ["speculative_draft_load_format"]),
        (None, {"speculative_fixed_width": True}, ["speculative_fixed_width"]),
        ("a.plugin", {"speculative_token_map": "nofile"}, ()),
    ],
)
def test_flags_that_an_algorithm_does_not_read_are_told_in_one_line(
    algorithm: str | None, given: dict[str, Any], idle: Sequence[str]
) -> None:
    asked = replace(SpeculativeOptions(), speculative_algorithm=algorithm, **given)
    told = idle_drafts(Options(speculative=asked, given=("speculative_algorithm", *given)))
    flags = [f"--{name.replace('_', '-')}" for name in idle]
    assert [re.findall(r"--[\w-]+", line.partition(" effect ")[0]) for line in told] == (
        [flags] if flags else []
    )


def test_every_flag_of_drafts_is_somebodys() -> None:
    read = {*OF_ALL, *(name for names in READ.values() for name in names)}
    assert read == {field.name for field in fields(SpeculativeOptions)}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"speculative_algorithm": "NGRAM", "is_embedding": True}, "drawn"),
        ({"speculative_algorithm": "EAGLE3", "pp_size": 2}, "stage"),
        ({"speculative_algorithm": "NEXTN", "speculative_token_map": "hot.pt"}, "pickled"),
        (
            {
                "speculative_algorithm": "EAGLE3",
                "model_path": "org/a",
                "speculative_draft_model_path": "org/a",
            },
            "served",
        ),
    ],
)
def test_what_no_model_could_mend(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        speculation(from_arguments(**given))


def test_the_served_model_as_its_own_draft_is_told(target: Path) -> None:
    (notice,) = speculation(from_arguments(**asked(target, target)))
    assert "served" in notice
    assert speculation(from_arguments(**asked(target, Path("other")))) == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"speculative_ngram_min_bfs_breadth": 3, "speculative_ngram_max_bfs_breadth": 2}, "above"),
        ({"speculative_ngram_max_bfs_breadth": 2, "disable_cpu_kernels": True}, "trees"),
        ({"speculative_ngram_max_bfs_breadth": 65}, "breadth"),
    ],
)
def test_what_trees_need(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        configure(from_arguments(speculative_algorithm="NGRAM", **options))


def test_trees_of_ngrams_have_the_breadth_that_was_asked_for() -> None:
    config = configure(from_arguments(speculative_algorithm="NGRAM"))
    assert ngram_breadth(config, ngram_settings(config)) is None
    breadths = {"speculative_ngram_min_bfs_breadth": 2, "speculative_ngram_max_bfs_breadth": 4}
    config = configure(from_arguments(speculative_algorithm="NGRAM", **breadths))
    assert ngram_breadth(config, ngram_settings(config)) == Breadth(2, 4, 1, 12)


def test_relaxed_acceptance_says_that_drafts_change_answers() -> None:
    lossy = {"speculative_accept_threshold_single": 0.8, "speculative_accept_threshold_acc": 0.5}
    config = configure(from_arguments(speculative_algorithm="NGRAM", **lossy))
    assert accept_thresholds(config) == AcceptThresholds(single=0.8, acc=0.5)
    (told,) = (each for each in config.notices if "drafts change sampled answers" in each)
    assert "-single 0.8" in told and "-acc 0.5" in told
    for options in ({"speculative_algorithm": "NGRAM"}, lossy):
        exact = configure(from_arguments(**options))
        assert accept_thresholds(exact).exact
        assert not any("change sampled" in each for each in exact.notices)
    (idle,) = (each for each in exact.notices if "no effect" in each)
    assert "-single" in idle and "-acc" in idle


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"speculative_accept_threshold_single": 1.5}, "between"),
        ({"speculative_accept_threshold_acc": -0.1}, "between"),
        ({"speculative_accept_threshold_acc": float("nan")}, "number"),
        (
            {"speculative_accept_threshold_acc": 0.9, "enable_deterministic_inference": True},
            "deterministic",
        ),
    ],
)
def test_thresholds_that_cannot_be(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        configure(from_arguments(speculative_algorithm="NGRAM", **options))


def test_the_least_breadth_alone_relies_on_the_default_of_sglang() -> None:
    least = {"speculative_algorithm": "NGRAM", "speculative_ngram_min_bfs_breadth": 3}
    config = configure(from_arguments(**least))
    assert ngram_breadth(config, ngram_settings(config)) == Breadth(3, 10, 1, 12)
    (told,) = [each for each in config.rewrites if each.field.endswith("max_bfs_breadth")]
    assert told.after == 10 and "min-bfs-breadth" in told.reason
    assert trees(from_arguments(**least)) == []
    with pytest.raises(ConfigError, match="above"):
        trees(from_arguments(**{**least, "speculative_ngram_min_bfs_breadth": 11}))


@pytest.mark.parametrize("tokens", [1, 65])
def test_widths_have_limits(tokens: int) -> None:
    with pytest.raises(ConfigError, match="speculative"):
        configure(
            from_arguments(speculative_algorithm="NGRAM", speculative_num_draft_tokens=tokens)
        )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("target"))


def asked(target: Path, draft: Path | None, **options: Any) -> dict[str, Any]:
    path = None if draft is None else str(draft)
    return {
        "model_path": str(target),
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": path,
        **options,
    }


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({}, 3),
        ({"speculative_num_steps": 5}, 5),
        ({"speculative_num_draft_tokens": 5}, 4),
        ({"speculative_num_steps": 2, "speculative_num_draft_tokens": 8}, 2),
    ],
)
def test_a_chain_has_a_draft_of_each_step(
    target: Path, options: dict[str, int], width: int
) -> None:
    config = configure(from_arguments(**asked(target, target, **options)))
    assert config.draft_width == width
    assert config.speculative.speculative_num_draft_tokens == width + 1
    assert config.draft is not None and config.draft.facts.layers == 2
    idle = configure(from_arguments(**asked(target, target, speculative_ngram_capacity=9)))
    assert any("-ngram-capacity has no effect with" in each for each in idle.notices)
    assert not any("no effect" in each for each in config.notices)
    told = [each.field for each in config.rewrites]
    assert ("speculative_num_draft_tokens" in told) == (len(options) != 1 or width != 4)


@pytest.mark.parametrize(
    ("options", "steps", "tokens"),
    [
        ({}, 3, 13),
        ({"speculative_num_steps": 2}, 2, 9),
        ({"speculative_num_steps": 2, "speculative_num_draft_tokens": 21}, 2, 21),
        ({"speculative_num_draft_tokens": 3}, 3, 3),
    ],
)
def test_a_tree_has_the_drafts_that_were_asked_for(
    target: Path, options: dict[str, int], steps: int, tokens: int
) -> None:
    own = asked(target, target, speculative_eagle_topk=4, **options)
    config = configure(from_arguments(**own))
    assert config.draft_width == tokens - 1
    assert config.speculative.speculative_num_steps == steps
    search = choose_search(config)
    assert isinstance(search, TreeSearch) and search.trees
    assert list(why_model_refused(from_arguments(**own), layout_known=True, steps_known=True)) == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"speculative_eagle_topk": 4, "disable_cpu_kernels": True}, "trees"),
        ({"speculative_eagle_topk": 17}, "topk"),
        (
            {
                "speculative_eagle_topk": 2,
                "speculative_num_steps": 2,
                "speculative_num_draft_tokens": 8,
            },
            "above",
        ),
        ({"pp_size": 2}, "stage"),
        ({"speculative_num_steps": 64}, "between"),
        ({"speculative_draft_model_quantization": "awq"}, "--speculative-draft-model-quantization"),
        ({"speculative_draft_load_format": "pt"}, "--speculative-draft-load-format"),
        ({"speculative_draft_model_quantization": "gguf"}, "gguf"),
        ({"speculative_draft_load_format": "sharded_state"}, "whole"),
        ({"is_embedding": True}, "drawn"),
    ],
)
def test_what_does_not_go_with_a_draft_model(
    target: Path, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(CannotStart, match=word):
        configure(from_arguments(**asked(target, target, **options)))


def test_a_draft_of_another_vocabulary_is_refused(target: Path, tmp_path: Path) -> None:
    """Before weights are read: there are none."""
    shutil.copy(target / "config.json", tmp_path)
    dummy = asked(target, tmp_path, speculative_draft_load_format="dummy")
    with pytest.raises(CannotStart, match="path"):
        configure(from_arguments(**asked(target, None)))
    assert any("not compared" in one for one in configure(from_arguments(**dummy)).notices)
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert not any("compared" in one for one in configure(from_arguments(**dummy)).notices)
    words = tokenizer["model"]["vocab"]
    words.update(zip(words, [*list(words.values())[1:], 0], strict=True))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CannotStart, match="vocabulary"):
        configure(from_arguments(**dummy))
    (tmp_path / "tokenizer.json").unlink()
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "vocab_size": 299}))
    with pytest.raises(CannotStart, match="299"):
        configure(from_arguments(**dummy))


def test_a_check_refuses_what_the_start_refuses(target: Path, tmp_path: Path) -> None:
    shutil.copy(target / "config.json", tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "vocab_size": 299}))
    options = from_arguments(**asked(target, tmp_path))
    found = list(why_model_refused(options, layout_known=True, steps_known=True))
    assert len(found) == 1 and "299" in found[0]
    options = from_arguments(**asked(target, target))
    assert not list(why_model_refused(options, layout_known=True, steps_known=True))


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"speculative_ngram_min_match_window_size": 13}, "above"),
        ({"speculative_ngram_max_match_window_size": 65}, "between"),
        ({"speculative_ngram_branch_length": 1}, "between"),
        ({"speculative_ngram_capacity": 0}, "between"),
        ({"speculative_ngram_external_sam_budget": 65}, "between"),
        ({"speculative_ngram_external_corpus_max_tokens": 0}, "between"),
        ({"speculative_ngram_match_type": "LAST"}, "BFS"),
        ({"speculative_ngram_external_corpus_path": "/nowhere/a.txt"}, "nowhere"),
        ({"speculative_ngram_external_corpus_path": "/dev/null"}, "regular"),
        ({"speculative_ngram_external_corpus_path": ""}, "text"),
        (
            {"speculative_ngram_external_corpus_path": __file__, "skip_tokenizer_init": True},
            "tokenizer",
        ),
    ],
)
def test_flags_of_ngrams_are_checked_before_anything_is_loaded(
    asked: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        configure(from_arguments(speculative_algorithm="NGRAM", **asked))


def test_a_node_behind_the_first_needs_no_corpus() -> None:
    """Its ranks are told what the first one read."""
    options: Any = SimpleNamespace(
        speculative=SpeculativeOptions(
            speculative_algorithm="NGRAM", speculative_ngram_external_corpus_path="/nowhere"
        ),
        model=SimpleNamespace(skip_tokenizer_init=False),
        parallel=SimpleNamespace(node_rank=1),
    )
    context: Any = None
    assert corpus(options, context) == []
    options.parallel.node_rank = 0
    with pytest.raises(ConfigError, match="nowhere"):
        corpus(options, context)


def test_flags_of_ngrams_arrive() -> None:
    names = {
        "min_match_window_size": ("shortest", 2),
        "max_match_window_size": ("longest", 7),
        "branch_length": ("depth", 9),
        "capacity": ("capacity", 1000),
        "external_sam_budget": ("budget", 3),
    }
    given: dict[str, Any] = {
        f"speculative_ngram_{flag}": value for flag, (_, value) in names.items()
    }
    settings = ngram_settings(configure(from_arguments(speculative_algorithm="NGRAM", **given)))
    assert {field: getattr(settings, field) for field, _ in names.values()} == dict(names.values())
    assert settings.width == 11 and not settings.by_frequency
    config = configure(
        from_arguments(speculative_algorithm="NGRAM", speculative_ngram_match_type="PROB")
    )
    assert ngram_settings(config).by_frequency and ngram_settings(config).budget == 11


def test_what_has_no_effect_says_so() -> None:
    config = configure(
        from_arguments(
            speculative_algorithm="NGRAM",
            speculative_ngram_external_corpus_path=__file__,
            speculative_ngram_external_sam_budget=0,
        )
    )
    told = " ".join(config.notices)
    assert "sam-budget" in told


@pytest.mark.parametrize("gigabytes", [1, 64])
def test_the_tree_of_ngrams_has_a_share_of_the_memory(gigabytes: int) -> None:
    facts: Any = SimpleNamespace(platform=SimpleNamespace(memory_bytes=gigabytes << 30))
    options: Any = SimpleNamespace(
        speculative=SpeculativeOptions(
            speculative_algorithm="NGRAM", speculative_num_draft_tokens=4
        )
    )
    changed = list(drafts(options, facts))
    if gigabytes == 64:
        assert not changed
    else:
        ((name, capacity, _),) = changed
        assert name == "speculative_ngram_capacity"
        assert isinstance(capacity, int) and 900_000 < capacity < 1_000_000


def test_stages_hear_of_chains_only() -> None:
    asked = {"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 2}
    config = configure(from_arguments(**asked, pp_size=2))
    assert any("breadth 2 has no effect" in each for each in config.notices)


def test_flags_of_text_say_that_they_are_idle_where_none_is_generated() -> None:
    asked: dict[str, Any] = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    told = "--tool-call-parser and --reasoning-parser have no effect where no text is generated"
    assert told in configure(from_arguments(is_embedding=True, **asked)).notices
    assert told not in configure(from_arguments(**asked)).notices


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("constrained_json_whitespace_pattern", " "),
        ("constrained_json_disable_any_whitespace", True),
        ("stream_interval", 3),
        ("stream_output", True),
        ("enable_mis", True),
        ("sampling_defaults", "openai"),
        ("preferred_sampling_params", '{"temperature": 0.5}'),
    ],
)
def test_each_flag_of_text_says_so(flag: str, value: Any) -> None:
    told = f"--{flag.replace('_', '-')} has no effect where no text is generated"
    assert told in configure(from_arguments(is_embedding=True, **{flag: value})).notices
    assert told not in configure(from_arguments(**{flag: value})).notices
