"""Tokens that travel to the ranks of their experts and back, as ranks without shared memory do it:
the slow twin of `SharedMemoryGroup`'s.

An engine's ranks are neighbors in the group, and each sends a part of the engine's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Exchange = Callable[[list[Tensor], list[int]], list[Tensor]]
"""(rows for each rank, how many come from each) -> rows from each"""


@dataclass(frozen=True, slots=True)
class ExpertSpread:
    """Where the experts of a step's tokens are. Slots count through the ranks of the group."""

    counts: Sequence[int]
    """tokens of each engine"""
    placed: Tensor
    """[sum of counts, top] int64: the slots that a token goes to, those of this rank from 0; in
    front of the first rank's: nowhere"""
    each: int
    """slots of a rank"""

    def engine(self, rank: int, size: int) -> int:
        return rank // (size // len(self.counts))

    def tokens(self, engine: int) -> range:
        first = sum(self.counts[:engine])
        return range(first, first + self.counts[engine])

    def sent(self, rank: int, size: int) -> range:
        """Tokens that a rank sends"""
        ranks = size // len(self.counts)
        own, part = self.tokens(rank // ranks), rank % ranks
        return own[len(own) * part // ranks : len(own) * (part + 1) // ranks]

    def ranks(self, rank: int, size: int) -> Tensor:
        """[sum of counts, size] bool: which ranks have an expert of a token; `rank` is this one"""
        owners = (self.placed + rank * self.each).div(self.each, rounding_mode="floor")
        return (owners.unsqueeze(-1) == torch.arange(size, device=owners.device)).any(1)

    def cut(self, first: int, last: int) -> ExpertSpread:
        """Tokens first .. last - 1 of each engine"""
        counts = [max(0, min(count, last) - first) for count in self.counts]
        starts = [self.tokens(engine).start + first for engine in range(len(counts))]
        rows = [self.placed[at : at + count] for at, count in zip(starts, counts, strict=True)]
        return ExpertSpread(counts, torch.cat(rows), self.each)


def dispatch_rows(
    x: Tensor, spread: ExpertSpread, rank: int, size: int, exchange: Exchange
) -> Tensor:
    """`Group.dispatch`; rows that nobody sends are zeros."""
    asked, sent = spread.ranks(rank, size), spread.sent(rank, size)
    mine = asked[sent.start : sent.stop]
    first = sent.start - spread.tokens(spread.engine(rank, size)).start
    rows = x[first : first + len(sent)]
    sources = [spread.sent(one, size) for one in range(size)]
    wanted = [asked[one.start : one.stop, rank] for one in sources]
    found = exchange(
        [rows[mine[:, one]] for one in range(size)], [int(one.sum()) for one in wanted]
    )
    out = x.new_zeros(sum(spread.counts), x.shape[1])
    for source, here, came in zip(sources, wanted, found, strict=True):
        out[source.start : source.stop][here] = came
    return out


def collect_rows(
    y: Tensor, spread: ExpertSpread, rank: int, size: int, exchange: Exchange
) -> Tensor:
    """`Group.collect`: to all ranks of the engine whose token it is"""
    asked = spread.ranks(rank, size)
    engines = [spread.tokens(spread.engine(one, size)) for one in range(size)]
    own = engines[rank]
    wanted = asked[own.start : own.stop]
    back = [y[one.start : one.stop][asked[one.start : one.stop, rank]] for one in engines]
    found = exchange(back, wanted.sum(0).tolist())
    out = y.new_zeros(len(own), y.shape[1])
    for source, came in enumerate(found):
        part = torch.zeros_like(out)
        part[wanted[:, source]] = came
        out = out + part if source else part
    return out
