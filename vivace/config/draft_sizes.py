"""How many drafts a request has where no flag says it."""

from __future__ import annotations

NGRAM = "NGRAM"
NGRAM_TOKENS = 12
"""verified at once"""
DRAFT_STEPS = 3
"""passes of a draft model"""
MOST_TOKENS = 64
"""of a request that are verified at once, whatever flags say"""


def default_draft_tokens(algorithm: str, steps: int | None, topk: int) -> int:
    """Verified at once: the last known token, and a draft of each branch in each step."""
    if algorithm == NGRAM:
        return NGRAM_TOKENS
    return min(1 + (steps or DRAFT_STEPS) * topk, MOST_TOKENS)
