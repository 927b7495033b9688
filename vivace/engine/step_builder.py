"""A step while it is composed, and the record of it while it is in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from vivace.engine.sequence import Sequence
from vivace.protocol.request import LogprobOptions
from vivace.protocol.step import Join, StepPlan


@dataclass(slots=True)
class StepBuilder:
    """Columns of a step. Chunks of prompts come first, single decode tokens behind them."""

    number: int
    chunks: list[Sequence] = field(default_factory=list[Sequence])
    counts: list[int] = field(default_factory=list[int])
    """parallel to `chunks`"""
    decodes: list[Sequence] = field(default_factory=list[Sequence])
    joins: list[Join] = field(default_factory=list[Join])
    grants: list[tuple[int, list[int]]] = field(default_factory=list[tuple[int, list[int]]])
    admitted: int = 0
    """sequences that entered a row for this step"""
    cached: int = 0
    """their tokens found in the prefix cache"""
    reserved: int = 0
    """tokens they were promised beyond the pages they hold"""
    suspects: bool = False

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)

    @property
    def chunk_tokens(self) -> int:
        return sum(self.counts)

    def add_chunk(self, sequence: Sequence, count: int, pages: list[int]) -> None:
        """`count` tokens for a sequence that was just given `pages`."""
        if not sequence.joined:
            self.joins.append(join_of(sequence))
            sequence.joined = True
        elif pages:
            self.grants.append((sequence.row, pages))
        sequence.upper += count
        sequence.mentioned = self.number
        self.chunks.append(sequence)
        self.counts.append(count)

    def add_decodes(self, sequences: list[Sequence]) -> None:
        """One token for each sequence; the list is kept."""
        number = self.number
        for sequence in sequences:
            sequence.upper += 1
            sequence.mentioned = number
        self.decodes = sequences

    def plan(self, leaves: list[int]) -> StepPlan:
        decodes = self.decodes
        return StepPlan(
            number=self.number,
            rows=[sequence.row for sequence in self.chunks] + [s.row for s in decodes],
            counts=self.counts + [1] * len(decodes),
            joins=self.joins,
            leaves=leaves,
            grants=self.grants,
        )


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """Whose spans a plan in flight holds, in the plan's order."""

    chunks: list[Sequence]
    counts: list[int]
    decodes: list[Sequence]
    suspects: bool
    planned: float
    """when, in seconds"""

    def spans(self) -> list[tuple[Sequence, int]]:
        return [
            *zip(self.chunks, self.counts, strict=True),
            *((sequence, 1) for sequence in self.decodes),
        ]


def join_of(sequence: Sequence) -> Join:
    """How a worker learns of a sequence: all that is known, and where its valid KV is."""
    assert sequence.lease is not None
    request = sequence.request
    return Join(
        row=sequence.row,
        key=sequence.key,
        tokens=sequence.tokens.copy(),
        prompt=sequence.prompt,
        cached=sequence.computed,
        pages=sequence.lease.pages.copy(),
        sampling=request.sampling,
        logprobs=_open_logprobs(sequence),
        stop_ids=sequence.stop_ids,
        suspect=request.suspect,
    )


def _open_logprobs(sequence: Sequence) -> LogprobOptions | None:
    """Prompt positions are scored once, not again after a retraction."""
    options = sequence.request.logprobs
    if options is None or options.start < 0:
        return options
    start = sequence.scored if sequence.scored < sequence.prompt else -1
    return msgspec.structs.replace(options, start=start)
