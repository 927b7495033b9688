"""Which ranks share which layers, and what of a layer is a rank's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vivace.errors import CannotStart
from vivace.layers.all_to_all import STAYING, PairExchange, TravellingTokens
from vivace.layers.sums import Sums, SumTree, TreeSums, divide_sums
from vivace.platforms.attention import AttendingStep, Step
from vivace.platforms.groups import SINGLE_RANK, Group, Pipe
from vivace.platforms.ops.table import Ops


class TokenExchange(Protocol):
    """The tokens that a layer computes, and what becomes of the partial results of its ranks."""

    def gather(self, x: Tensor, step: Step) -> Tensor:
        """x[T, n] of this engine's tokens -> what the layer computes"""
        ...

    def complete(self, y: Tensor, step: Step) -> Tensor:
        """What this rank has of the result -> this engine's [T, n], of all ranks"""
        ...

    def own_rows(self, step: Step) -> slice | None:
        """This engine's tokens of those; None: all are"""
        ...

    def positions(self, step: AttendingStep) -> Tensor:
        """[T] int64: of what `gather` returns; below 0: of a token that is nobody's"""
        ...


class OwnTokens:
    """Of a layer that the ranks of one engine share."""

    def __init__(self, ranks: int, sums: Sums) -> None:
        self._alone = ranks == 1
        self._sums = sums

    def gather(self, x: Tensor, step: Step) -> Tensor:
        return x

    def complete(self, y: Tensor, step: Step) -> Tensor:
        return y if self._alone else self._sums.sum(y)

    def own_rows(self, step: Step) -> slice | None:
        return None

    def positions(self, step: AttendingStep) -> Tensor:
        return step.positions


class EngineTokens:
    """Of a layer that ranks of several engines share: it computes the tokens of all (data parallel
    attention). `peers`: the ranks at the same place of each engine; this one is `peers.rank`."""

    def __init__(self, sums: Sums, peers: Group) -> None:
        self._sums = sums
        self._peers = peers

    def gather(self, x: Tensor, step: Step) -> Tensor:
        return self._peers.gather_rows(x, step.host.engines.tokens)

    def complete(self, y: Tensor, step: Step) -> Tensor:
        return self._sums.reduce_scatter(y, step.host.engines.tokens, self._peers.rank)

    def own_rows(self, step: Step) -> slice | None:
        counts = step.host.engines.tokens
        first = sum(counts[: self._peers.rank])
        return slice(first, first + counts[self._peers.rank])

    def positions(self, step: AttendingStep) -> Tensor:
        """Gathered once a step, as pairs of floats that nobody computes with"""
        engines = step.host.engines
        if engines.positions is None:
            own = step.positions if engines.live is None else engines.live
            found = self._peers.gather_rows(own.unsqueeze(1).view(torch.float32), engines.tokens)
            engines.positions = found.view(torch.int64).view(-1)
        return engines.positions


class HomeTokens:
    """Of a layer whose tokens stay with their engine and travel by pairs (layers/all_to_all.py)."""

    def __init__(self, peers: Group) -> None:
        self._all = EngineTokens(SINGLE_RANK, peers)
        self._alone = peers.size == 1

    def gather(self, x: Tensor, step: Step) -> Tensor:
        return x

    def complete(self, y: Tensor, step: Step) -> Tensor:
        return y

    def own_rows(self, step: Step) -> slice | None:
        return None

    def positions(self, step: AttendingStep) -> Tensor:
        return step.positions if self._alone else self._all.positions(step)


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """Where ranks have different layers: those of this one, which hands what they compute on."""

    layers: range | None = None
    """None: all of them"""
    source: Pipe | None = None
    """from the stage before; None: this is the first, which has the embedding"""
    target: Pipe | None = None
    """to the next stage; None: this is the last, which has the last norm and the head"""


WHOLE_MODEL = PipelineStage()


class Shares(Protocol):
    """So many ranks divide something, and this is one of them: a `Group`, or a part of one."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True)
class RankShare:
    rank: int = 0
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """The group of each kind of layer that this rank is in."""

    attention: Group
    dense: Group
    """gated MLPs"""
    experts: Group
    """all ranks whose results make up those of a mixture"""
    moe_ep: RankShare = RankShare()
    """of them, which experts this rank has"""
    moe_tp: RankShare = RankShare()
    """of those, which part of the inside"""
    vocabulary: Group
    """embedding and head"""
    replicated: Group = SINGLE_RANK
    """what every rank has whole"""
    peers: Group = SINGLE_RANK
    """ranks at the same place of each of the engines that share layers"""
    shared_experts: Group
    """the expert that every token passes"""
    stage: PipelineStage = WHOLE_MODEL
    """the layers of this rank"""
    spanning: frozenset[str] = frozenset()
    """kinds of layers that those engines share"""
    deterministic: bool = False
    """sums are added in an order that does not depend on the number of ranks"""
    travels: bool = False
    """tokens go to the ranks of their experts"""
    most_sent: int | None = None
    """tokens that a rank sends at once then; None: there is no limit"""

    def group(self, kind: str) -> Group:
        """By the name of its field"""
        return getattr(self, kind)

    def sum_tree(self, name: str, inputs: int, unit: int, shares: Shares) -> SumTree | None:
        """Of a layer whose inputs are divided; None where ranks add in their own order. Raises
        CannotStart."""
        if not self.deterministic:
            return None
        return divide_sums(name, inputs, unit, shares.rank, shares.size)

    def sums(self, kind: str, ops: Ops, tree: SumTree | None) -> Sums:
        group = self.group(kind)
        return group if tree is None else TreeSums(group, ops, tree)

    def exchange(self, kind: str, ops: Ops, tree: SumTree | None = None) -> TokenExchange:
        """`tree`: the order of sums, where it is a fixed one"""
        if kind == "experts" and self.travels:
            return HomeTokens(self.peers)
        group, sums = self.group(kind), self.sums(kind, ops, tree)
        if kind in self.spanning:
            return EngineTokens(sums, self.peers)
        return OwnTokens(group.size, sums)

    def pairs(self, slots: int) -> PairExchange:
        """`slots`: of experts, of each rank"""
        if not self.travels:
            return STAYING
        return TravellingTokens(self.experts, self.peers, slots, self.most_sent)


def share_all_layers(group: Group, ep: int = 1) -> ParallelLayout:
    """All layers are shared by the same ranks. `ep`: so many parts of them have different experts;
    neighbors share the inside of the same ones (config/parallelism.py)."""
    moe_tp = group.size // ep
    return ParallelLayout(
        attention=group,
        dense=group,
        experts=group,
        shared_experts=group,
        moe_ep=RankShare(group.rank // moe_tp, ep),
        moe_tp=RankShare(group.rank % moe_tp, moe_tp),
        vocabulary=group,
    )


SINGLE = share_all_layers(SINGLE_RANK)


def split(what: str, size: int, unit: int, group: Shares) -> slice:
    """This rank's range of `size` rows, in whole units (a head, or 1). Raises CannotStart where
    the units do not go into the ranks."""
    units = size // unit
    if units % group.size:
        raise CannotStart(
            f"{what}: its {units} parts cannot be divided among {group.size} ranks; "
            f"possible for --tp-size are {', '.join(map(str, divisors(units)))}"
        )
    each = units // group.size * unit
    return slice(group.rank * each, (group.rank + 1) * each)


def split_blocks(what: str, size: int, block: int, group: Shares) -> slice:
    """The same in whole blocks (the last one may be shorter), of which the first ranks may have one
    more. Raises CannotStart where some would have none."""
    if block == 1:
        return split(what, size, 1, group)
    blocks = -(-size // block)
    if blocks < group.size:
        raise CannotStart(
            f"{what}: its {blocks} blocks of {block} cannot be divided among {group.size} ranks; "
            f"possible for --tp-size are up to {blocks}"
        )
    each, more = divmod(blocks, group.size)
    first = group.rank * each + min(group.rank, more)
    end = first + each + (group.rank < more)
    return slice(first * block, min(end * block, size))


def split_or_repeat(what: str, size: int, unit: int, group: Group) -> slice:
    """The same, but with more ranks than units several have the same one (heads of keys)."""
    units = size // unit
    if units >= group.size or group.size % units:
        return split(what, size, unit, group)
    first = group.rank * units // group.size * unit
    return slice(first, first + unit)


def split_unevenly(size: int, group: Group) -> list[int]:
    """How many rows each rank has; the first ones may have one more. Raises CannotStart where some
    would have none."""
    if size < group.size:
        raise CannotStart(
            f"{size} tokens of a vocabulary cannot be divided among {group.size} devices"
        )
    each, more = divmod(size, group.size)
    return [each + (rank < more) for rank in range(group.size)]


def divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 1024) + 1) if number % n == 0]
