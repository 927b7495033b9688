"""Collectives over shared memory, without processes: ranks are threads with their own kernels."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import torch
from every_isa import FLOATS, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.shared_group import SLOT_BYTES, SharedMemoryGroup
from vivace.platforms.groups import RankMemory

pytestmark = needs_kernels


class Peers:
    """What a group needs to know of its ranks."""

    memory = None

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)


def make_groups(size: int, isa: str | None = None) -> tuple[RankMemory, list[SharedMemoryGroup]]:
    memory = RankMemory(os.memfd_create("ranks"))
    groups = [
        SharedMemoryGroup(Kernels(1 + rank % 2, isa=isa), Peers(rank, size), memory)  # type: ignore[arg-type]
        for rank in range(size)
    ]
    os.close(memory.descriptor)
    return memory, groups


@pytest.fixture
def pair() -> Iterator[tuple[RankMemory, list[SharedMemoryGroup]]]:
    yield make_groups(2)


def on_all(
    groups: list[SharedMemoryGroup], run: Callable[[SharedMemoryGroup], Tensor]
) -> list[Tensor]:
    """What each rank gets, all at once."""
    found: dict[int, Tensor] = {}
    threads = [
        threading.Thread(target=lambda one=one: found.update({one.rank: run(one)}))
        for one in groups
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(len(groups))]


def add_part(parts: list[Tensor], one: SharedMemoryGroup) -> Tensor:
    return one.sum(parts[one.rank].clone())


@pytest.mark.parametrize("isa", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_sums_are_those_of_all_in_their_order(size: int, isa: str) -> None:
    _, groups = make_groups(size, isa)
    for rows, columns in ((1, 1), (1, 576), (5, 37), (17, 1024), (0, 8)):
        parts = [torch.randn(rows, columns) for _ in range(size)]
        wanted = parts[0].clone()
        for part in parts[1:]:
            wanted += part
        found = on_all(groups, partial(add_part, parts))
        assert all(torch.equal(each, wanted) for each in found)


def test_long_rows_come_in_pieces(pair: tuple[RankMemory, list[SharedMemoryGroup]]) -> None:
    _, groups = pair
    rows, columns = 70, SLOT_BYTES // 4 // 16  # 16 rows in a slot
    parts = [torch.randn(rows, columns) for _ in range(2)]
    found = on_all(groups, partial(add_part, parts))
    assert all(torch.equal(each, parts[0] + parts[1]) for each in found)
    with pytest.raises(ValueError, match="share_rows"):
        groups[0].sum(torch.zeros(1, SLOT_BYTES // 4 + 1))


def test_uneven_parts_are_put_side_by_side() -> None:
    _, groups = make_groups(3)
    widths = [5, 4, 4]
    whole = torch.randn(7, 13)
    parts = whole.split(widths, 1)
    found = on_all(groups, lambda one: one.gather(parts[one.rank], widths))
    assert all(torch.equal(each, whole) for each in found)
    with pytest.raises(ValueError, match="gather"):
        groups[0].gather(torch.zeros(2, 3), widths)


@settings(max_examples=20, deadline=None)
@given(calls=st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(1, 70)), max_size=30))
def test_many_in_a_row_do_not_mix(calls: list[tuple[bool, int, int]]) -> None:
    """Slots are used in turn: who is ahead never writes over what another one still reads."""
    _, groups = make_groups(3)

    def run(one: SharedMemoryGroup) -> Tensor:
        sums = []
        for number, (gathers, rows, columns) in enumerate(calls):
            x = torch.full((rows, columns), float(1 + number + one.rank))
            y = one.gather(x, [columns] * 3) if gathers else one.sum(x)
            sums.append(y.sum().reshape(1))
        return torch.cat(sums) if sums else torch.zeros(0)

    wanted = [
        float(rows * columns * (3 * (1 + number) + 3))
        for number, (_, rows, columns) in enumerate(calls)
    ]
    for found in on_all(groups, run):
        assert found.tolist() == wanted


def test_nobody_waits_for_a_rank_that_has_died(
    pair: tuple[RankMemory, list[SharedMemoryGroup]],
) -> None:
    memory, groups = pair
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (groups[0].sum(torch.ones(3, 40)), ended.set()))
    waiting.start()
    assert not ended.wait(0.3)
    memory.abandon()
    assert ended.wait(10)
    groups[0].sum(torch.ones(3, 40))  # nor is anybody awaited later
    waiting.join()
