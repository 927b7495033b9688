"""How many drafts a request may have, and who proposes them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vivace.config.config import Options, ResolveContext, Slices
from vivace.config.errors import ConfigError
from vivace.files import open_input

NGRAM, STANDALONE = "NGRAM", "STANDALONE"
EAGLE, EAGLE3, NEXTN = "EAGLE", "EAGLE3", "NEXTN"
NGRAM_TOKENS = 12
"""verified at once, where no flag says how many"""
CAPACITY_SHARE, TREE_BYTES = 1 / 16, 70
"""most of the machine's memory for n-grams, and what a token of them may take"""
DRAFT_STEPS = 3
"""passes of a draft model, where no flag says how many"""


def drafts(options: Options, context: ResolveContext) -> Iterator[tuple[str, object, str]]:
    """A rewrite, as config/rules.py has them."""
    asked = options.speculative
    tokens, steps = asked.speculative_num_draft_tokens, asked.speculative_num_steps
    algorithm = asked.speculative_algorithm
    if algorithm is not None and not drafts_by_model(options) and tokens is None:
        most = NGRAM_TOKENS if algorithm == NGRAM else DRAFT_STEPS + 1
        yield "speculative_num_draft_tokens", most, f"the default with {algorithm}"
    capacity, wanted = affordable_capacity(context), asked.speculative_ngram_capacity
    if algorithm == NGRAM and capacity < wanted:
        why = f"a {1 / CAPACITY_SHARE:.0f}th of this machine's memory"
        yield "speculative_ngram_capacity", capacity, why
    if not drafts_by_model(options):
        return
    if steps is None:
        steps = DRAFT_STEPS if tokens is None else tokens - 1
        why = "the default" if tokens is None else "a chain has a pass for each draft"
        yield "speculative_num_steps", steps, why
    if tokens != steps + 1:
        why = "a chain is the last known token and a draft of each step"
        yield "speculative_num_draft_tokens", steps + 1, why


def affordable_capacity(context: ResolveContext) -> int:
    """Tokens of the shared tree of n-grams, for each engine of a machine alike."""
    return max(1, int(context.platform.memory_bytes * CAPACITY_SHARE / TREE_BYTES))


def drafts_by_model(options: Slices) -> bool:
    """Whether a model proposes."""
    return options.speculative.speculative_algorithm in (STANDALONE, EAGLE, EAGLE3, NEXTN)


def idle_drafts(options: Options, context: ResolveContext) -> list[str]:
    """Flags of drafts without any."""
    if options.speculative.speculative_algorithm is not None:
        return []
    return [
        f"--{name.replace('_', '-')} has no effect without --speculative-algorithm"
        for name in options.given
        if name.startswith("speculative_") and name != "speculative_algorithm"
    ]


def ngrams(options: Options, context: ResolveContext) -> list[str]:
    """What must hold between flags of n-gram drafts."""
    asked = options.speculative
    low = asked.speculative_ngram_min_match_window_size
    high = asked.speculative_ngram_max_match_window_size
    if low > high:
        raise ConfigError(
            f"--speculative-ngram-min-match-window-size {low} is above "
            f"--speculative-ngram-max-match-window-size {high}"
        )
    if (path := corpus_path(options)) is None:
        return []
    flag = f"--speculative-ngram-external-corpus-path {path}"
    if options.model.skip_tokenizer_init:
        raise ConfigError(f"{flag} needs the tokenizer: leave --skip-tokenizer-init out")
    try:
        os.close(open_input(path))
    except OSError as error:
        raise ConfigError(f"{flag}: {error}") from None
    if asked.speculative_ngram_external_sam_budget == 0:
        return [f"{flag} has no effect with --speculative-ngram-external-sam-budget 0"]
    return []


def trees_of_ngrams(options: Options, context: ResolveContext) -> list[str]:
    """After the rules: what trees need."""
    asked = options.speculative
    low, high = asked.speculative_ngram_min_bfs_breadth, asked.speculative_ngram_max_bfs_breadth
    if asked.speculative_algorithm != NGRAM:
        return []
    if low > high:
        raise ConfigError(
            f"--speculative-ngram-min-bfs-breadth {low} is above "
            f"--speculative-ngram-max-bfs-breadth {high}"
        )
    if high > 1 and options.runtime.disable_cpu_kernels:
        raise ConfigError(
            f"--speculative-ngram-max-bfs-breadth {high}: without the CPU kernels attention takes "
            "no trees of drafts; use 1, or the kernels (see --disable-cpu-kernels)"
        )
    if high > 1 and options.parallel.pp_size > 1:
        return [
            f"--speculative-ngram-max-bfs-breadth {high} has no effect with --pp-size "
            f"{options.parallel.pp_size}: stages hear of chains only"
        ]
    return []


def relaxed_acceptance(options: Options, context: ResolveContext) -> list[str]:
    """Thresholds with which drafts change what is drawn."""
    asked = options.speculative
    lossy = [
        f"--{name.replace('_', '-')} {value}"
        for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
        if (value := getattr(asked, name)) < 1.0
    ]
    if asked.speculative_algorithm is None or not lossy:
        return []
    if options.runtime.enable_deterministic_inference:
        raise ConfigError(
            f"{lossy[0]}: sampled answers would depend on drafts, against "
            "--enable-deterministic-inference; leave one of them out"
        )
    return [
        f"{' and '.join(lossy)}: drafts change sampled answers, which may differ from run to run "
        "for the same seed; greedy ones stay the same"
    ]


def corpus_path(options: Slices) -> str | None:
    """Of a file of texts that drafts come from."""
    asked = options.speculative
    if asked.speculative_algorithm != NGRAM:
        return None
    return asked.speculative_ngram_external_corpus_path


def draft_width(options: Options) -> int:
    """Most drafts behind the last known token of a request; after the rules."""
    asked = options.speculative
    drafting = asked.speculative_algorithm is not None
    return (asked.speculative_num_draft_tokens or 1) - 1 if drafting else 0
