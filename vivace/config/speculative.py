"""Flags of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.kernels import ATTENTION, QUANTIZATIONS
from vivace.config.model import LOAD_FORMATS, OTHER_LOAD_FORMATS
from vivace.config.option import no_effect, not_available, option
from vivace.config.parallel import MOE_A2A, MOE_RUNNERS
from vivace.config.unavailable import NO_SPECULATION

NO_DRAFT_MODEL = not_available("drafts of another model are not supported yet", "use NGRAM")
CHAINS = no_effect("drafts are chains, which have no branches")


@dataclass(frozen=True)
class SpeculativeOptions:
    speculative_algorithm: str | None = option(
        help="How drafts are proposed; by default there are none.",
        choices=["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"],
        values=dict.fromkeys(["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH"], NO_DRAFT_MODEL),
    )
    speculative_fixed_width: bool = option(
        False,
        "Give every request as many drafts as the flags allow, whatever they cost; otherwise as "
        "many as pay for themselves.",
    )
    speculative_draft_model_path: str | None = option(
        help="Draft model or draft head.", aliases=["speculative-draft-model"], cpu=NO_SPECULATION
    )
    speculative_draft_model_revision: str | None = option(
        help="Revision of the draft model on a hub.", cpu=NO_SPECULATION
    )
    speculative_draft_load_format: str | None = option(
        help="How the draft's weights are read.",
        choices=[*LOAD_FORMATS, *OTHER_LOAD_FORMATS],
        cpu=NO_SPECULATION,
    )
    speculative_num_steps: int | None = option(help="Draft steps per round.", cpu=NO_SPECULATION)
    speculative_eagle_topk: int | None = option(
        help="Branches per draft step; 1 is a chain.", cpu=NO_SPECULATION
    )
    speculative_num_draft_tokens: int | None = option(
        help="Most tokens of a request that are verified at once, its last one and drafts; by "
        "default 12 with NGRAM."
    )
    speculative_accept_threshold_single: float = option(
        1.0, "Accept a draft token from this probability on (lossy below 1).", cpu=NO_SPECULATION
    )
    speculative_accept_threshold_acc: float = option(
        1.0, "Raise acceptance by dividing by this (lossy below 1).", cpu=NO_SPECULATION
    )
    speculative_token_map: str | None = option(
        help="File of frequent tokens that shrinks the draft's vocabulary.", cpu=NO_SPECULATION
    )
    speculative_attention_mode: str = option(
        "prefill",
        "Which kind of attention kernel verifies drafts.",
        choices=["prefill", "decode"],
        cpu=NO_SPECULATION,
    )
    speculative_moe_runner_backend: str | None = option(
        help="Kernels of the draft's experts.", choices=MOE_RUNNERS, cpu=NO_SPECULATION
    )
    speculative_moe_a2a_backend: str | None = option(
        help="How tokens travel to the draft's experts.", choices=MOE_A2A, cpu=NO_SPECULATION
    )
    speculative_draft_attention_backend: str | None = option(
        help="Kernels of the draft's attention.", choices=ATTENTION, cpu=NO_SPECULATION
    )
    speculative_draft_model_quantization: str | None = option(
        help="Quantization of the draft; unquant: none.",
        choices=["unquant", "gguf", *QUANTIZATIONS],
        cpu=NO_SPECULATION,
    )
    enable_multi_layer_eagle: bool = option(
        False, "One multi-token-prediction layer per draft step.", cpu=NO_SPECULATION
    )
    speculative_ngram_min_match_window_size: int = option(
        1, "Least tokens of a request's end that must have occurred before to get n-gram drafts."
    )
    speculative_ngram_max_match_window_size: int = option(
        12, "Most tokens of a request's end that n-gram drafts look for."
    )
    speculative_ngram_min_bfs_breadth: int = option(
        1, "Minimum number of branches of an n-gram draft.", cpu=CHAINS
    )
    speculative_ngram_max_bfs_breadth: int = option(
        10, "Maximum number of branches of an n-gram draft.", cpu=CHAINS
    )
    speculative_ngram_match_type: str = option(
        "BFS",
        "Of several continuations of an n-gram take the latest one (BFS) or the most frequent one "
        "(PROB).",
        choices=["BFS", "PROB"],
    )
    speculative_ngram_branch_length: int = option(
        18,
        "Tokens of the n-grams that all requests share.",
        aliases=["speculative-ngram-max-trie-depth"],
    )
    speculative_ngram_capacity: int = option(
        10_000_000,
        "Most tokens in the tree of n-grams that requests share; memory is taken as they come, 10 "
        "bytes for each, or up to 70.",
    )
