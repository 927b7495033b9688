"""What the ranks of an engine agree on: memory, cache groups, and sizes that all have room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vivace.models.loading import ReportProgress
from vivace.platforms.groups import Group
from vivace.platforms.platform import Platform
from vivace.worker.sizing import Demand, PoolSize, most_pages, size_pool

NOTHING = 1 << 62
"""of a minimum: more than any rank has"""


def windows_of_all(own: Sequence[int], group: Group) -> tuple[int, ...]:
    """Those that the layers of any rank have, so that cache groups are the same on all."""
    found: list[int] = []
    while True:
        further = (window for window in own if not found or window > found[-1])
        (least,) = group.minimum([min(further, default=NOTHING)])
        if least == NOTHING:
            return tuple(found)
        found.append(least)


def size_together(demand: Demand, group: Group, report: ReportProgress) -> PoolSize:
    report("Sizing the KV pool", 0.0)
    size = size_pool(agree(demand, group))
    report("Sizing the KV pool", 1.0)
    return replace(size, others=demand.weigh(size.others, size.rows))


def agree(demand: Demand, group: Group) -> Demand:
    """What the rank with the least room has: the same on all of them, and so is what is made of
    it. Stages of a pipeline differ in weights and in what a token takes."""
    room = most_pages(demand)
    (least,) = group.minimum([room])
    (first,) = group.minimum([group.rank if room == least else group.size])
    bytes_of_token = [demand.kv_bytes_per_token, *(w.kv_bytes_per_token for w in demand.windows)]
    numbers = [demand.free_bytes, demand.available_bytes, demand.weight_bytes, *bytes_of_token]
    asked = numbers if group.rank == first else [NOTHING] * len(numbers)
    free, available, weights, kv, *windows = group.minimum(asked)
    (states,) = (-nbytes for nbytes in group.minimum([-demand.state_bytes]))
    return replace(
        demand,
        free_bytes=free,
        available_bytes=available,
        weight_bytes=weights,
        state_bytes=states,
        kv_bytes_per_token=kv,
        windows=tuple(
            replace(window, kv_bytes_per_token=nbytes)
            for window, nbytes in zip(demand.windows, windows, strict=True)
        ),
    )


def share_memory(platform: Platform, workers: int, share: int, group: Group) -> tuple[int, int]:
    """(bytes for each worker, `share` of rank 0, which alone is told one): what every rank has"""
    (least,) = group.minimum([-share])
    (free,) = group.minimum([own_share(platform, workers, -least)])
    return free, -least


def own_share(platform: Platform, workers: int, share: int) -> int:
    available = platform.available_bytes()
    return min(share, available) if share else available // workers
