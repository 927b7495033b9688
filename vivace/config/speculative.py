"""Flags of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.kernels import ATTENTION, METHOD_STATES, METHODS
from vivace.config.model import LOAD_FORMATS, OTHER_FORMAT, OTHER_LOAD_FORMATS
from vivace.config.option import no_effect, not_available, option
from vivace.config.parallel import MOE_A2A, MOE_RUNNERS

NO_DFLASH = not_available(
    "drafts of block diffusion (arXiv 2602.06036) are not supported yet",
    "use EAGLE3, STANDALONE or NGRAM",
)
WHOLE_DRAFT = not_available("a draft is read from its whole checkpoint", "use auto")
ONE_ATTENTION = no_effect("drafts are verified by the kernels that compute everything else")
SAME_KERNELS = no_effect("the draft is computed by the kernels that compute the model")
SAME_RANKS = no_effect("experts of a draft are divided as its other layers are")
DRAFTERS = "vivace.drafters"
"""entry points: each takes a `Config` and gives a `worker.drafter.Drafter`"""


@dataclass(frozen=True)
class SpeculativeOptions:
    speculative_algorithm: str | None = option(
        help="Who proposes drafts; an installed drafter by its name. Default: nobody.",
        choices=["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"],
        values={"DFLASH": NO_DFLASH},
        plugins=DRAFTERS,
    )
    speculative_fixed_width: bool = option(
        False,
        "As many drafts as the flags allow, whatever they cost.",
    )
    speculative_draft_model_path: str | None = option(
        help="Smaller model, or head, that drafts: folder, GGUF file or org/name.",
        aliases=["speculative-draft-model"],
    )
    speculative_draft_model_revision: str | None = option(
        help="Revision of the draft model on a hub."
    )
    speculative_draft_load_format: str | None = option(
        help="--load-format of the draft. Default: auto.",
        choices=[*LOAD_FORMATS, *OTHER_LOAD_FORMATS],
        values={**dict.fromkeys(OTHER_LOAD_FORMATS, OTHER_FORMAT), "sharded_state": WHOLE_DRAFT},
    )
    speculative_num_steps: int | None = option(
        help="Most drafts of a model in a step, a pass for each. Default: 3."
    )
    speculative_eagle_topk: int | None = option(
        help="Branches that each pass of a draft goes on from. Default: 1, a chain."
    )
    speculative_num_draft_tokens: int | None = option(
        help="Tokens verified at once. Default: 12 with NGRAM, else steps * topk + 1."
    )
    speculative_accept_threshold_single: float = option(
        1.0, "Sampled answers take drafts this likely; below 1 drafts change them."
    )
    speculative_accept_threshold_acc: float = option(
        1.0, "Divides their probabilities; below 1 drafts change sampled answers."
    )
    speculative_token_map: str | None = option(
        help="Token ids that EAGLE and NEXTN may propose: JSON or safetensors."
    )
    speculative_attention_mode: str = option(
        "prefill",
        "Which kind of attention kernel verifies drafts.",
        choices=["prefill", "decode"],
        cpu=ONE_ATTENTION,
    )
    speculative_moe_runner_backend: str | None = option(
        help="Kernels of the draft's experts.", choices=MOE_RUNNERS, cpu=SAME_KERNELS
    )
    speculative_moe_a2a_backend: str | None = option(
        help="How tokens travel to the draft's experts.", choices=MOE_A2A, cpu=SAME_RANKS
    )
    speculative_draft_attention_backend: str | None = option(
        help="Kernels of the draft's attention.", choices=ATTENTION, cpu=SAME_KERNELS
    )
    speculative_draft_model_quantization: str | None = option(
        help="--quantization of the draft. Default: as its files say.",
        choices=METHODS,
        values=METHOD_STATES,
    )
    enable_multi_layer_eagle: bool = option(
        False, "One multi-token-prediction layer per draft step."
    )
    speculative_ngram_min_match_window_size: int = option(
        1, "Least tokens that must have occurred before for n-gram drafts."
    )
    speculative_ngram_max_match_window_size: int = option(
        12, "Most tokens of a request's end that n-gram drafts look for."
    )
    speculative_ngram_min_bfs_breadth: int = option(
        1, "Least ways on behind a long n-gram, and behind drafts of a tree."
    )
    speculative_ngram_max_bfs_breadth: int | None = option(
        help="Most ways on behind a short n-gram. Default: 1; 10 if the least is more."
    )
    speculative_ngram_match_type: str = option(
        "BFS",
        "Which continuation counts: the latest (BFS) or most frequent (PROB).",
        choices=["BFS", "PROB"],
    )
    speculative_ngram_branch_length: int = option(
        18,
        "Tokens of the n-grams that all requests share.",
        aliases=["speculative-ngram-max-trie-depth"],
    )
    speculative_ngram_capacity: int = option(
        10_000_000,
        "Most tokens of n-grams that requests share, of 10 to 70 bytes.",
    )
    speculative_ngram_external_corpus_path: str | None = option(
        help="Texts that n-gram drafts may come from: plain, or documents in JSONL.",
    )
    speculative_ngram_external_corpus_max_tokens: int = option(
        10_000_000, "Most tokens of all corpora together."
    )
    speculative_ngram_external_sam_budget: int | None = option(
        help="Most drafts of a step that come from a corpus. Default: all."
    )
