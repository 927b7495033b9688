"""What a benchmark sends: one `BenchRequest` per request, whatever data set it came from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vivace.bench.errors import BenchError

Prompt = str | list[int] | list[dict[str, Any]]
"""Text, token ids, or chat messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """One request to send, or the first turn of a conversation."""

    prompt: Prompt
    input_len: int
    """Prompt length in tokens by the client's tokenizer."""
    output_len: int
    """Tokens to generate."""
    routing_key: str | None = None
    """Sent as the header X-SMG-Routing-Key, so that a router keeps a group together."""
    at: float | None = None
    """Arrival in seconds after the start, for traces."""
    json_schema: dict[str, Any] | None = None
    """What the answer must obey."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Merged into the request body."""
    followups: tuple[str, ...] = ()
    """Questions of the later turns; each is sent with everything said before it."""


def lengths_between(chance: random.Random, length: int, ratio: float, count: int) -> list[int]:
    """`count` lengths, uniform over the integers of [max(int(length * ratio), 1), length]."""
    if length < 1:
        raise BenchError(f"a length must be at least 1 token, not {length}")
    lowest = max(int(length * ratio), 1)
    return [chance.randint(lowest, length) for _ in range(count)]


def total_input(queries: Sequence[BenchRequest]) -> int:
    return sum(query.input_len for query in queries)


def total_output(queries: Sequence[BenchRequest]) -> int:
    return sum(query.output_len for query in queries)
