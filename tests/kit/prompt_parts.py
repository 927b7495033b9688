"""Log-probabilities of a prompt as the engine sends them, and back."""

from __future__ import annotations

from collections.abc import Iterable

from vivace.frontend.answer_parts import PromptRows
from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob


def collect_rows(
    tokens: list[int], options: LogprobOptions, parts: Iterable[PromptLogprobs]
) -> list[TokenLogprob]:
    """What the parts say of a prompt; they go on where the one before ended."""
    rows = PromptRows(tokens, options)
    for part in parts:
        assert part.start == rows.next and rows.add(part)
    return list(rows)
