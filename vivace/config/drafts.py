"""How many drafts a request may have, and who proposes them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vivace.config.config import Options, ResolveContext, Slices
from vivace.config.draft_sizes import DRAFT_STEPS, NGRAM, default_draft_tokens
from vivace.config.errors import ConfigError
from vivace.files import open_input

STANDALONE = "STANDALONE"
EAGLE, EAGLE3, NEXTN = "EAGLE", "EAGLE3", "NEXTN"
CORPUS = "--speculative-ngram-external-corpus-path"
NGRAM_BREADTH = 10
"""SGLang's default of --speculative-ngram-max-bfs-breadth"""
CAPACITY_SHARE = 1 / 16
"""most of the machine's memory for n-grams"""


def drafts(options: Options, context: ResolveContext) -> Iterator[tuple[str, object, str]]:
    """A rewrite, as config/rules.py has them."""
    asked = options.speculative
    tokens, steps = asked.speculative_num_draft_tokens, asked.speculative_num_steps
    algorithm = asked.speculative_algorithm
    if algorithm is not None and not drafts_by_model(options) and tokens is None:
        most = default_draft_tokens(algorithm, None, 1)
        yield "speculative_num_draft_tokens", most, f"the default with {algorithm}"
    capacity, wanted = affordable_capacity(options, context), asked.speculative_ngram_capacity
    if algorithm == NGRAM and capacity < wanted:
        why = f"a {1 / CAPACITY_SHARE:.0f}th of this machine's memory"
        yield "speculative_ngram_capacity", capacity, why
    breadth = most_breadth(options)
    if algorithm == NGRAM and asked.speculative_ngram_max_bfs_breadth is None and breadth > 1:
        why = "SGLang's default, on which --speculative-ngram-min-bfs-breadth alone relies"
        yield "speculative_ngram_max_bfs_breadth", breadth, why
    if not drafts_by_model(options):
        return
    if (topk := branches(options)) > 1:
        yield from tree_sizes(algorithm or "", steps, tokens, topk)
        return
    if steps is None:
        steps = default_steps(options, context) if tokens is None else tokens - 1
        why = "the default" if tokens is None else "a chain has a pass for each draft"
        yield "speculative_num_steps", steps, why
    if tokens != steps + 1:
        why = "a chain is the last known token and a draft of each step"
        yield "speculative_num_draft_tokens", steps + 1, why


def default_steps(options: Options, context: ResolveContext) -> int:
    """Passes of a draft: as many as it has layers, where each has one of its own."""
    head = context.draft.head if context.draft is not None else None
    if head is not None and options.speculative.enable_multi_layer_eagle:
        return head.behind or DRAFT_STEPS
    return DRAFT_STEPS


def tree_sizes(
    algorithm: str, steps: int | None, tokens: int | None, topk: int
) -> Iterator[tuple[str, object, str]]:
    if steps is None:
        steps = DRAFT_STEPS
        yield "speculative_num_steps", steps, "the default"
    if tokens is None:
        most = default_draft_tokens(algorithm, steps, topk)
        yield "speculative_num_draft_tokens", most, "steps * topk drafts are the default"


def branches(options: Slices) -> int:
    """Of a model's drafts."""
    return options.speculative.speculative_eagle_topk or 1


def affordable_capacity(options: Slices, context: ResolveContext) -> int:
    """Tokens of the shared tree of n-grams, for each engine of a machine alike."""
    nbytes = token_bytes(options.speculative.speculative_ngram_branch_length)
    return max(1, int(context.platform.memory_bytes * CAPACITY_SHARE / nbytes))


def token_bytes(depth: int) -> int:
    """That a token of the shared tree may take: half a node (48) and half the room for what only
    one text said behind it, where all texts fork at every second token."""
    return 28 + 2 * (depth + 3)


def drafts_by_model(options: Slices) -> bool:
    """Whether a model proposes."""
    return options.speculative.speculative_algorithm in (STANDALONE, EAGLE, EAGLE3, NEXTN)


def corpus_flags(options: Options) -> list[str]:
    """What a file of texts needs beside it."""
    path, budget = corpus_path(options), options.speculative.speculative_ngram_external_sam_budget
    if path and options.model.skip_tokenizer_init:
        raise ConfigError(f"{CORPUS} {path} needs the tokenizer: leave --skip-tokenizer-init out")
    if path and budget == 0:
        return [f"{CORPUS} {path} has no effect with --speculative-ngram-external-sam-budget 0"]
    return []


def corpus(options: Options, context: ResolveContext) -> list[str]:
    """Whether the file of texts can be read."""
    path = corpus_path(options)
    try:
        if path is not None and not options.parallel.node_rank:  # that node tells all ranks
            os.close(open_input(path))
    except OSError as error:
        raise ConfigError(f"{CORPUS} {path}: no text file: {error.strerror or error}") from None
    return []


def trees(options: Options) -> list[str]:
    """What trees of drafts need, as far as flags say it."""
    flag, asked = tree_flag(options), options.speculative
    if flag and options.runtime.disable_cpu_kernels:
        raise ConfigError(
            f"{flag}: without the CPU kernels attention takes no trees of drafts; use 1, or the "
            "kernels (see --disable-cpu-kernels)"
        )
    low, high = asked.speculative_ngram_min_bfs_breadth, most_breadth(options)
    if asked.speculative_algorithm == NGRAM and low > high:
        raise ConfigError(
            f"--speculative-ngram-min-bfs-breadth {low} is above "
            f"--speculative-ngram-max-bfs-breadth {high}"
        )
    steps, tokens = asked.speculative_num_steps, asked.speculative_num_draft_tokens
    if not (flag and drafts_by_model(options) and steps and tokens):
        return []
    topk = branches(options)
    if tokens > (most := 1 + topk + (steps - 1) * topk**2):
        raise ConfigError(
            f"--speculative-num-draft-tokens {tokens} is above {most}, which is all that "
            f"--speculative-num-steps {steps} and {flag} bring; use {most} or less"
        )
    return []


def relaxed_acceptance(options: Options) -> list[str]:
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


def settled_trees(options: Options, context: ResolveContext) -> list[str]:
    """After the rules, which decide whether there are kernels."""
    notices, flag = trees(options), tree_flag(options)
    if flag and (stages := options.parallel.pp_size) > 1:
        notices.append(f"{flag} has no effect with --pp-size {stages}: stages hear of chains only")
    return notices


def tree_flag(options: Slices) -> str:
    """What asks for trees; empty: drafts are chains."""
    if drafts_by_model(options) and (topk := branches(options)) > 1:
        return f"--speculative-eagle-topk {topk}"
    asked, breadth = options.speculative, most_breadth(options)
    if asked.speculative_algorithm == NGRAM and breadth > 1:
        if asked.speculative_ngram_max_bfs_breadth is None:
            return f"--speculative-ngram-min-bfs-breadth {asked.speculative_ngram_min_bfs_breadth}"
        return f"--speculative-ngram-max-bfs-breadth {breadth}"
    return ""


def draft_tree(options: Slices) -> tuple[int, int] | None:
    """Passes that make a tree of drafts, and branches that each goes on from; n-grams need none,
    and their first way is so long. After the rules. None: chains."""
    asked = options.speculative
    if not tree_flag(options) or options.parallel.pp_size > 1:
        return None
    if drafts_by_model(options):
        return asked.speculative_num_steps or 1, branches(options)
    return -(-((asked.speculative_num_draft_tokens or 2) - 1) // most_breadth(options)), 1


def most_breadth(options: Slices) -> int:
    """Ways on of n-grams. Who gives no more than the least relies on SGLang's default."""
    asked = options.speculative
    if asked.speculative_ngram_max_bfs_breadth is None:
        return NGRAM_BREADTH if asked.speculative_ngram_min_bfs_breadth > 1 else 1
    return asked.speculative_ngram_max_bfs_breadth


def corpus_path(options: Slices) -> str | None:
    """Of a file of texts that drafts come from."""
    asked = options.speculative
    if asked.speculative_algorithm != NGRAM:
        return None
    return asked.speculative_ngram_external_corpus_path


def draft_width(options: Options) -> int:
    """Most drafts behind the last known token of a request; after the rules."""
    asked = options.speculative
    return (asked.speculative_num_draft_tokens or 1) - 1 if asked.speculative_algorithm else 0
