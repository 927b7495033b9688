"""Flags of drafts beside each other: who reads which, and what must hold whatever the model."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from vivace.config.config import Options
from vivace.config.drafts import EAGLE, EAGLE3, NEXTN, NGRAM, STANDALONE, drafts_by_model
from vivace.config.errors import ConfigError
from vivace.config.speculative import SpeculativeOptions
from vivace.config.token_map import refuse_pickles

SCRIPTED = "VIVACE_TEST_DRAFTS"
OF_ALL = (
    "speculative_algorithm",
    "speculative_fixed_width",
    "speculative_num_draft_tokens",
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    "speculative_attention_mode",
    "speculative_moe_runner_backend",
    "speculative_moe_a2a_backend",
    "speculative_draft_attention_backend",
)
"""which every algorithm reads, or a device says that they do nothing"""
OF_FILES = ("speculative_draft_model_revision", "speculative_draft_load_format")
"""of the draft's own files"""
OF_MODELS = (
    "speculative_draft_model_path",
    *OF_FILES,
    "speculative_draft_model_quantization",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "enable_multi_layer_eagle",
)
NAMES = tuple(field.name for field in fields(SpeculativeOptions))
OF_NGRAMS = tuple(name for name in NAMES if name.startswith("speculative_ngram_"))
READ = {
    NGRAM: OF_NGRAMS,
    STANDALONE: OF_MODELS,
    EAGLE3: OF_MODELS,
    EAGLE: (*OF_MODELS, "speculative_token_map"),
    NEXTN: (*OF_MODELS, "speculative_token_map"),
}
"""algorithm -> flags that it reads beside those of all"""


def idle_drafts(options: Options) -> list[str]:
    """Flags of drafts that nobody reads. What an installed drafter reads nobody knows."""
    asked = options.speculative
    algorithm = asked.speculative_algorithm
    given = [name for name in options.given if name in NAMES and name != "speculative_algorithm"]
    if algorithm is None:
        return without_effect(given, "without --speculative-algorithm")
    if algorithm not in READ:
        return []
    others = [name for name in given if name not in (*OF_ALL, *READ[algorithm])]
    notices = without_effect(others, f"with --speculative-algorithm {algorithm}")
    if drafts_by_model(options) and asked.speculative_draft_model_path is None:
        of_files = [name for name in given if name in OF_FILES]
        notices += without_effect(of_files, "without --speculative-draft-model-path")
    return notices


def without_effect(names: list[str], where: str) -> list[str]:
    if not names:
        return []
    flags = [f"--{name.replace('_', '-')}" for name in names]
    have = "has" if len(flags) == 1 else "have"
    listed = " and ".join(filter(None, (", ".join(flags[:-1]), flags[-1])))
    return [f"{listed} {have} no effect {where}"]


def speculation(options: Options) -> list[str]:
    """What drafts do not go with."""
    asked = options.speculative
    if asked.speculative_algorithm is None:
        return []
    if options.model.is_embedding:
        raise ConfigError("--is-embedding: nothing is drawn; leave --speculative-algorithm out")
    read = READ.get(asked.speculative_algorithm, ())
    if asked.speculative_token_map and "speculative_token_map" in read:
        refuse_pickles(asked.speculative_token_map)
    sent = asked.speculative_algorithm == NGRAM and not options.environment.get(SCRIPTED)
    if not sent and (stages := options.parallel.pp_size or 1) > 1:
        raise ConfigError(
            f"--pp-size {stages}: the first stage must know what the last one drafts, and hears of "
            "n-grams only; use --tp-size, or --speculative-algorithm NGRAM"
        )
    return served_as_draft(options)


def served_as_draft(options: Options) -> list[str]:
    algorithm = options.speculative.speculative_algorithm
    path, served = options.speculative.speculative_draft_model_path, options.model.model_path
    if algorithm not in (STANDALONE, EAGLE3) or not path or not served:
        return []
    if Path(path).resolve() != Path(served).resolve():
        return []
    flag = f"--speculative-draft-model-path {path}"
    if algorithm == EAGLE3:
        raise ConfigError(f"{flag} is the model that is served; name a head that was made for it")
    return [
        f"{flag} is the model that is served: a draft costs as much as a token; use a smaller one"
    ]


def match_windows(options: Options) -> list[str]:
    """What must hold between the lengths of n-grams."""
    asked = options.speculative
    low = asked.speculative_ngram_min_match_window_size
    high = asked.speculative_ngram_max_match_window_size
    if asked.speculative_algorithm == NGRAM and low > high:
        raise ConfigError(
            f"--speculative-ngram-min-match-window-size {low} is above "
            f"--speculative-ngram-max-match-window-size {high}"
        )
    return []
