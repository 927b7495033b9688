"""Log-probabilities of a prompt as the engine sends them, and back."""

from __future__ import annotations

from collections.abc import Iterable

from vivace.engine.oracle import pack_logprobs
from vivace.frontend.request_state import PromptRows
from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob


def rows_of(
    tokens: list[int], options: LogprobOptions, parts: Iterable[PromptLogprobs]
) -> list[TokenLogprob]:
    """What the parts say of a prompt; they go on where the one before ended."""
    rows = PromptRows(tokens, options)
    for part in parts:
        assert part.start == rows.next and rows.add(part)
    return list(rows)


def part_of(start: int, rows: list[TokenLogprob]) -> PromptLogprobs:
    return pack_logprobs(start, rows)
