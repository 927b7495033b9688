"""What a step's attention will do, decided once for all layers whose queries see the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import HostStep, LocalAttention
from vivace.platforms.ops.paged_cache import PagedCache

GROUP_BYTES = 4 << 20
"""largest gathered buffer of a decode group: it is written and read again, so it should stay in
the cores' own caches (4 MiB is 1.1 times as fast as 24 MiB here, at 32 rows)"""
SHORTEST_SHARE = 0.7
"""rows shorter than this share of the group's longest go into the next group"""
SMALLEST_GROUP = 4
"""groups of fewer rows cost more in calls than their padding does"""
QUERY_BLOCK = 256
"""queries attended at once by a span with history"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeGroup:
    """Rows whose histories are gathered together. Also the one row of a span with history."""

    rows: int
    keys: int
    """longest history, in tokens from the first gathered key"""
    tokens: Tensor
    """[rows] int64: their tokens in the step"""
    slot: int | None
    """KV slot of the first key, when the one row's keys lie side by side"""
    pages: Tensor | None
    """[rows * pages a row] int64, otherwise"""
    mask: Tensor | None
    """[rows, 1, 1, keys], added to the scores; None when every key is seen"""
    first: int = 0
    """position of the first gathered key (one row only)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Queries start..end of the step over keys key_start..key_end of the span's key list."""

    start: int
    end: int
    key_start: int
    key_end: int
    causal: bool
    mask: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillSpan:
    start: int
    end: int
    history: DecodeGroup | None
    """where its keys are; None = the step's own keys are all there is"""
    blocks: list[Block]


@dataclass(kw_only=True, slots=True)
class AttentionPlan:
    single: DecodeGroup | None = None
    """set when the step is this one decode group, in the step's order"""
    groups: list[DecodeGroup] = field(default_factory=list)
    spans: list[PrefillSpan] = field(default_factory=list)


class Masks:
    """Masks of query blocks, shared by the spans and layers of a step."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._kept: dict[tuple[int, int, int, int, LocalAttention], Tensor] = {}

    def clear(self) -> None:
        self._kept.clear()

    def block(
        self, queries: int, keys: int, offset: int, first: int, local: LocalAttention
    ) -> Tensor:
        """[queries, keys]: 0 where query i (at key offset + i) sees key j, else -inf. `first`: the
        position of key 0."""
        first = first % local.chunk if local.chunk is not None else 0  # nothing else depends on it
        key = (queries, keys, offset, first, local)
        if key not in self._kept:
            places = torch.arange(first, first + keys)
            at = torch.arange(first + offset, first + offset + queries).unsqueeze(1)
            hidden = (places > at) | (places < local.first_key(at))
            self._kept[key] = torch.zeros(queries, keys, dtype=self._dtype).masked_fill_(
                hidden, -torch.inf
            )
        return self._kept[key]

    def rows(self, keys: int, firsts: np.ndarray, ends: np.ndarray) -> Tensor | None:
        """[n, 1, 1, keys]: row i sees keys firsts[i]..ends[i]; None when each sees all."""
        if not firsts.any() and bool((ends == keys).all()):
            return None
        places = np.arange(keys)
        hidden = (places < firsts[:, None]) | (places >= ends[:, None])
        mask = torch.zeros(len(ends), keys, dtype=self._dtype)
        return mask.masked_fill_(torch.from_numpy(hidden), -torch.inf).view(len(ends), 1, 1, keys)


def plan_attention(
    host: HostStep, pages: np.ndarray, local: LocalAttention, memory: PagedCache, masks: Masks
) -> AttentionPlan:
    """Decode spans into groups, longer ones into blocks of queries; `pages`: a page table."""
    plan = AttentionPlan()
    counts = host.starts[1:] - host.starts[:-1]
    singles = np.arange(len(counts)) if host.decode else np.flatnonzero(counts == 1)
    if len(singles):
        plan.groups = _decode_groups(host, pages, singles, local, memory, masks)
    if host.decode and len(plan.groups) == 1 and len(singles) == len(plan.groups[0].tokens):
        plan.single = plan.groups[0]
        return plan
    for span in np.flatnonzero(counts != 1).tolist():
        plan.spans.append(_prefill_span(host, pages, span, local, memory, masks))
    return plan


def _decode_groups(
    host: HostStep,
    table: np.ndarray,
    spans: np.ndarray,
    local: LocalAttention,
    memory: PagedCache,
    masks: Masks,
) -> list[DecodeGroup]:
    lengths = host.context_lens[spans]
    firsts = np.maximum(local.first_key(lengths - 1), 0)
    page_firsts = firsts // memory.page_size
    needed = -(-lengths // memory.page_size) - page_firsts
    groups = []
    for part in _split(needed, memory):
        groups.append(
            _decode_group(
                host.starts,
                table,
                spans[part],
                lengths[part],
                firsts[part],
                page_firsts[part],
                memory,
                masks,
            )
        )
    return groups


def _split(needed: np.ndarray, memory: PagedCache) -> list[np.ndarray]:
    """Row sets of similar page counts whose gathered buffer stays small; in order when one."""
    longest, shortest = int(needed.max()), int(needed.min())
    page_bytes = next(iter(memory.layers.values()))[0].nbytes
    most = max(1, GROUP_BYTES // (longest * page_bytes))
    few = len(needed) <= SMALLEST_GROUP
    if len(needed) <= most and (few or shortest >= longest * SHORTEST_SHARE):
        return [np.arange(len(needed))]
    order = np.argsort(-needed, kind="stable")
    parts, start = [], 0
    for end in range(1, len(order) + 1):
        head = int(needed[order[start]])
        full = end - start >= max(1, GROUP_BYTES // (head * page_bytes))
        if end == len(order):
            parts.append(order[start:end])
        elif full or (
            end - start >= SMALLEST_GROUP and int(needed[order[end]]) < head * SHORTEST_SHARE
        ):
            parts.append(order[start:end])
            start = end
    return parts if len(parts) > 1 else [np.arange(len(needed))]


def _decode_group(
    starts: np.ndarray,
    table: np.ndarray,
    spans: np.ndarray,
    lengths: np.ndarray,
    firsts: np.ndarray,
    page_firsts: np.ndarray,
    memory: PagedCache,
    masks: Masks,
) -> DecodeGroup:
    size = memory.page_size
    tokens = torch.from_numpy(starts[spans])
    if len(spans) == 1:
        return _one_row(table[spans[0]], int(lengths[0]), int(firsts[0]), size, tokens, masks)
    width = int((-(-lengths // size) - page_firsts).max())
    columns = page_firsts[:, None] + np.arange(width)
    inside = columns < table.shape[1]
    pages = table[spans[:, None], np.where(inside, columns, 0)]
    origin = page_firsts * size
    keys = int((lengths - origin).max())
    return DecodeGroup(
        rows=len(spans),
        keys=keys,
        tokens=tokens,
        slot=None,
        pages=torch.from_numpy(pages.reshape(-1)),
        mask=masks.rows(keys, firsts - origin, lengths - origin),
    )


def _one_row(
    row: np.ndarray, length: int, first: int, size: int, tokens: Tensor, masks: Masks
) -> DecodeGroup:
    """The keys first..length of one row; without a mask unless a gathered page starts earlier."""
    page_first = first // size
    pages = row[page_first : -(-length // size)]
    if len(pages) == 1 or not (np.diff(pages) != 1).any():
        return DecodeGroup(
            rows=1,
            keys=length - first,
            tokens=tokens,
            slot=int(pages[0]) * size + first - page_first * size,
            pages=None,
            mask=None,
            first=first,
        )
    origin = page_first * size
    keys = length - origin
    return DecodeGroup(
        rows=1,
        keys=keys,
        tokens=tokens,
        slot=None,
        pages=torch.from_numpy(pages.copy()),
        mask=masks.rows(keys, np.array([first - origin]), np.array([keys])),
        first=origin,
    )


def _prefill_span(
    host: HostStep,
    table: np.ndarray,
    span: int,
    local: LocalAttention,
    memory: PagedCache,
    masks: Masks,
) -> PrefillSpan:
    start, end = int(host.starts[span]), int(host.starts[span + 1])
    length = int(host.context_lens[span])
    before = length - (end - start)
    if before == 0 and not local.limits(length):
        whole = Block(start=start, end=end, key_start=0, key_end=length, causal=True, mask=None)
        return PrefillSpan(start=start, end=end, history=None, blocks=[whole])
    if before == 0:
        history, origin = None, 0
    else:
        first = max(0, local.first_key(before))
        history = _one_row(
            table[span], length, first, memory.page_size, torch.tensor([start]), masks
        )
        origin = history.first
    blocks = []
    for block in range(start, end, QUERY_BLOCK):
        block_end = min(end, block + QUERY_BLOCK)
        position = before + block - start
        key_start = max(0, local.first_key(position) - origin)
        key_end = before + block_end - start - origin
        keys, first_key = key_end - key_start, origin + key_start
        mask = masks.block(block_end - block, keys, position - first_key, first_key, local)
        blocks.append(
            Block(
                start=block,
                end=block_end,
                key_start=key_start,
                key_end=key_end,
                causal=False,
                mask=mask,
            )
        )
    return PrefillSpan(start=start, end=end, history=history, blocks=blocks)
