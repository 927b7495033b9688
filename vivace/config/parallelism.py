"""How ranks share a model, as SGLang lays them out: a pure function of the flags; what is legal.

Ranks count through the replicas, in each through its pipeline stages, in each through its ranks of
tensor parallelism (SGLang's parallel_state.py and dp_attention.py). Those are ordered by attention
group, and by expert rank: neighbors share heads, and neighbors share the inside of an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from vivace.config.config import Slices

ALL_TO_ALL = ("deepep", "mooncake", "nixl", "mori", "ascend_fuseep", "flashinfer")
"""backends for which SGLang sets ep to tp"""
Ranks = tuple[int, ...]


class SizeSource(Protocol):
    """Where sizes come from, by the options' names; one that is not known may raise."""

    def value(self, name: str) -> Any: ...

    def has(self, name: str) -> bool: ...

    def number(self, name: str) -> int | None: ...

    def positive(self, name: str) -> int:
        """1 where nothing is given"""
        ...


class OptionSizes:
    """`SizeSource` of options that are parsed."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices

    def value(self, name: str) -> Any:
        parallel, experts = self._slices.parallel, self._slices.experts
        return getattr(parallel if hasattr(parallel, name) else experts, name)

    def has(self, name: str) -> bool:
        return bool(self.value(name))

    def number(self, name: str) -> int | None:
        return self.value(name)

    def positive(self, name: str) -> int:
        return max(1, self.value(name) or 1)


class Parallelism(msgspec.Struct, frozen=True, dict=True):
    """The sizes of one instance; one that is not known raises by itself."""

    source: SizeSource
    engine_heads: bool = False
    """With dp attention each engine has an output head of its own, whatever is asked: Vivace."""

    @cached_property
    def tp(self) -> int:
        return self.source.positive("tp_size")

    @cached_property
    def pp(self) -> int:
        return self.source.positive("pp_size")

    @cached_property
    def dp(self) -> int:
        return self.source.positive("dp_size")

    @cached_property
    def cp(self) -> int:
        return self.source.positive("attn_cp_size")

    @cached_property
    def nodes(self) -> int:
        return self.source.positive("nnodes")

    @cached_property
    def all_to_all(self) -> bool:
        """Tokens travel to their experts, each of which a rank has whole."""
        return self.source.value("moe_a2a_backend") in ALL_TO_ALL

    @cached_property
    def ep(self) -> int:
        return self.tp if self.all_to_all else self.source.positive("ep_size")

    @cached_property
    def dense_tp(self) -> int:
        """Ranks that share dense layers."""
        size = self.source.number("moe_dense_tp_size")
        return self.tp if size is None else size

    @cached_property
    def dp_attention(self) -> bool:
        return self.source.has("enable_dp_attention") and self.dp > 1

    @property
    def attention_dp(self) -> int:
        """Groups of ranks with requests of their own (dp attention)."""
        return self.dp if self.dp_attention else 1

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of one request."""
        return max(1, self.tp // (self.attention_dp * self.cp))

    @property
    def moe_tp(self) -> int:
        """Ranks that share the inside of an expert."""
        return max(1, self.tp // self.ep)

    @property
    def lm_head(self) -> int:
        """Ranks that share the output head."""
        if not self.dp_attention:
            return self.tp
        inside = self.engine_heads or self.source.has("enable_dp_lm_head")
        return self.attention_tp if inside else self.tp

    def running_requests(self, limit: int) -> int:
        """Requests that one engine (a DP rank) runs of --max-running-requests: with dp attention
        they divide it, and the remainder is lost; replicas run all of them each."""
        return limit // self.attention_dp

    @property
    def engine_ranks(self) -> int:
        """Ranks of one engine"""
        return self.attention_tp * self.cp * self.pp

    def engine_members(self, index: int) -> Ranks:
        """The ranks of one of the engines that compute together, stage by stage; with dp attention
        each stage has some of every engine."""
        each = self.attention_tp * self.cp
        return tuple(
            stage * self.tp + index * each + place
            for stage in range(self.pp)
            for place in range(each)
        )

    @property
    def reporting_rank(self) -> int:
        """Among the ranks of one engine: whose results count. The first one of the last stage."""
        return self.engine_ranks - self.engine_ranks // self.pp

    def place_in_engine(self, rank: int) -> int:
        """Among the ranks of its engine, of one that `engine_members` has"""
        each = self.attention_tp * self.cp
        return rank // self.tp * each + rank % each

    def leads_stage(self, rank: int) -> bool:
        """It is the first one of its engine's in a stage."""
        return rank % (self.attention_tp * self.cp) == 0

    @property
    def replicas(self) -> int:
        """Copies of the whole model in one instance (data parallelism without dp attention)."""
        return 1 if self.dp_attention else self.dp

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def node_devices(self) -> int:
        """of one node"""
        return self.devices // self.nodes


def requested_sizes(slices: Slices) -> Parallelism:
    """Those of parsed options"""
    return Parallelism(OptionSizes(slices), engine_heads=True)


def engine_rows(slices: Slices) -> int | None:
    """`Parallelism.running_requests` of parsed options; None where nobody has set a limit."""
    limit = slices.schedule.max_running_requests
    return limit and requested_sizes(slices).running_requests(limit)


class ProcessGroups(msgspec.Struct, frozen=True, kw_only=True):
    """For each kind of layer all its groups; every rank is in one group of each kind."""

    tp: tuple[Ranks, ...]
    pp: tuple[Ranks, ...]
    """a rank of each stage"""
    dp: tuple[Ranks, ...]
    """ranks with the same weights in different replicas"""
    attention_tp: tuple[Ranks, ...]
    attention_cp: tuple[Ranks, ...]
    attention_dp: tuple[Ranks, ...]
    """ranks with the same heads and different requests (dp attention)"""
    moe_ep: tuple[Ranks, ...]
    """ranks that have different experts"""
    moe_tp: tuple[Ranks, ...]
    """ranks that share the inside of an expert"""
    dense_tp: tuple[Ranks, ...]
    lm_head: tuple[Ranks, ...]
    nodes: tuple[Ranks, ...]

    def find(self, rank: int) -> dict[str, Ranks]:
        """Kind -> the group that `rank` is in."""
        return {
            kind: next(group for group in getattr(self, kind) if rank in group)
            for kind in self.__struct_fields__
        }


def process_groups(layout: Parallelism) -> ProcessGroups:
    """Raises ValueError, with all that is wrong, for sizes that are not legal."""
    if faults := [text for check in LEGALITY for text in [check(layout)] if text]:
        raise ValueError("; ".join(faults))
    outer = (layout.replicas, layout.pp)
    whole = (*outer, layout.tp)
    attention = (*outer, layout.attention_dp, layout.cp, layout.attention_tp)
    experts = (*outer, layout.ep, layout.moe_tp)
    return ProcessGroups(
        tp=ranks_along(whole, 2),
        pp=ranks_along(whole, 1),
        dp=ranks_along(whole, 0),
        attention_tp=ranks_along(attention, 4),
        attention_cp=ranks_along(attention, 3),
        attention_dp=ranks_along(attention, 2),
        moe_ep=ranks_along(experts, 2),
        moe_tp=ranks_along(experts, 3),
        dense_tp=neighbors(layout.devices, layout.dense_tp),
        lm_head=neighbors(layout.devices, layout.lm_head),
        nodes=neighbors(layout.devices, layout.devices // layout.nodes),
    )


def ranks_along(shape: Sequence[int], axis: int) -> tuple[Ranks, ...]:
    """Ranks count through `shape`, its last axis fastest: those that differ in `axis` only."""
    stride = prod(shape[axis + 1 :])
    block = shape[axis] * stride
    firsts = (start + i for start in range(0, prod(shape), block) for i in range(stride))
    return tuple(tuple(range(first, first + block, stride)) for first in firsts)


def neighbors(ranks: int, size: int) -> tuple[Ranks, ...]:
    return tuple(tuple(range(first, first + size)) for first in range(0, ranks, size))


def nodes_share_ranks(layout: Parallelism) -> str:
    """What is wrong, as all of these say it; empty: nothing."""
    ranks = layout.tp * layout.pp
    if ranks % layout.nodes:
        return (
            f"tp {layout.tp} x pp {layout.pp} = {ranks} is not a multiple of {layout.nodes} nodes"
        )
    return ""


def plain_dp_nodes(layout: Parallelism) -> str:
    if layout.nodes > 1 and layout.dp > 1 and not layout.dp_attention:
        return f"dp {layout.dp} on {layout.nodes} nodes needs --enable-dp-attention"
    return ""


def dp_divides_tp(layout: Parallelism) -> str:
    dp, cp = layout.attention_dp, layout.cp
    if layout.tp % (dp * cp):
        groups = f"dp {dp}" + (f" x cp {cp}" if cp > 1 else "")
        return f"tp {layout.tp} is not a multiple of {groups}: attention groups differ in size"
    return ""


def ep_divides_tp(layout: Parallelism) -> str:
    if layout.tp % layout.ep:
        return f"tp {layout.tp} is not a multiple of ep {layout.ep}"
    return ""


def dense_tp(layout: Parallelism, *, whole: bool = True) -> str:
    """`whole`: the release also takes tp, which is what it does without the flag."""
    size = layout.dense_tp
    if size == 1 or (size == layout.tp and whole):
        return ""
    other = f"tp ({layout.tp})" if whole else f"from SGLang 0.5.13 on tp ({layout.tp})"
    return f"--moe-dense-tp-size must be 1, or {other}, got {size}"


LEGALITY: tuple[Callable[[Parallelism], str], ...] = (
    nodes_share_ranks,
    plain_dp_nodes,
    dp_divides_tp,
    ep_divides_tp,
    dense_tp,
)
