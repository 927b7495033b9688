"""Collectives over shared memory, without processes: ranks are threads with their own kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from descriptors import rank_memories
from every_isa import FLOATS, needs_kernels
from expert_spreads import make_spread, travel_captured
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import Meeting, ThreadGroup
from torch import Tensor

from vivace.errors import RankLost
from vivace.platforms.cpu.native import Arena, Kernels
from vivace.platforms.cpu.platform import NativePlatform
from vivace.platforms.cpu.shared_group import SLOT_BYTES, SharedMemoryGroup
from vivace.platforms.dispatch import Exchange, collect_rows, dispatch_rows
from vivace.platforms.errors import CaptureError
from vivace.platforms.groups import SINGLE_RANK
from vivace.platforms.platform import StepShape, detect
from vivace.platforms.rendezvous import RankMemory, Rendezvous

pytestmark = needs_kernels


def make_groups(size: int, isa: str | None = None) -> tuple[RankMemory, list[SharedMemoryGroup]]:
    memories = rank_memories(size)
    groups = [
        SharedMemoryGroup(Kernels(1 + rank % 2, isa=isa), memories[rank], rank, size)
        for rank in range(size)
    ]
    return memories[0], groups


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


@pytest.mark.parametrize("counts", [[1, 1, 1], [5, 1, 9], [0, 3, 0]])
@pytest.mark.parametrize("columns", [7, 64, SLOT_BYTES // 4 // 2])
def test_rows_of_all_ranks_and_the_sum_of_ones_own(counts: list[int], columns: int) -> None:
    """Also where they come in pieces of two rows."""
    _, groups = make_groups(3)
    whole = torch.randn(sum(counts), columns)
    parts = whole.split(counts)
    found = on_all(groups, lambda one: one.gather_rows(parts[one.rank], counts))
    assert all(torch.equal(each, whole) for each in found)
    every = [torch.randn(sum(counts), columns) for _ in range(3)]
    sums = on_all(groups, lambda one: one.reduce_scatter(every[one.rank], counts, one.rank))
    wanted = (every[0] + every[1] + every[2]).split(counts)
    assert all(torch.equal(mine, part) for mine, part in zip(sums, wanted, strict=True))
    with pytest.raises(ValueError, match="gather_rows"):
        groups[0].gather_rows(torch.zeros(77, 3), counts)
    with pytest.raises(ValueError, match="reduce_scatter"):
        groups[0].reduce_scatter(torch.zeros(77, 3), counts, 0)


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


def test_a_captured_sum_serves_fewer_rows() -> None:
    """A replay is the same calls with another number of rows."""
    _, groups = make_groups(2)
    whole = [torch.randn(6, 40) for _ in range(2)]

    def run(one: SharedMemoryGroup) -> Tensor:
        kernels, arena = one._kernels, Arena()
        with kernels.capture(arena) as graph:
            x = kernels.empty(6, 40)
            y = one.gather(one.sum(x), [40, 40])
        results = []
        for rows in (6, 1, 0, 4):
            x[:] = whole[one.rank]
            graph.run(rows)
            results.append(y[:rows].clone())
        return torch.cat(results)

    total = whole[0] + whole[1]
    wanted = torch.cat([torch.cat([total[:rows]] * 2, 1) for rows in (6, 1, 0, 4)])
    assert all(torch.equal(found, wanted) for found in on_all(groups, run))


def test_captured_rows_of_all_serve_fewer_of_each() -> None:
    """Of a layer that engines share: gathered, and each one's rows of the sum."""
    size, most = 3, 5
    _, groups = make_groups(size)
    whole = [torch.randn(most, 40) for _ in range(size)]

    def run(one: SharedMemoryGroup) -> Tensor:
        kernels, arena, counts = one._kernels, Arena(), [most] * size
        with kernels.capture(arena) as graph:
            x = kernels.empty(most, 40)
            gathered = one.gather_rows(x, counts)
            mine = one.reduce_scatter(gathered, counts, one.rank)
        with pytest.raises(CaptureError, match="differ"), kernels.capture(Arena()):
            one.gather_rows(x, [most if rank == one.rank else 1 for rank in range(size)])
        results = []
        for rows in (most, 1, 4):
            x[:] = whole[one.rank]
            graph.run(rows)
            wanted = torch.cat([part[:rows] for part in whole])
            assert torch.equal(gathered[: size * rows], wanted)
            results.append(mine[:rows].clone())
        return torch.cat(results)

    wanted = [torch.cat([(x + x + x)[:rows] for rows in (most, 1, 4)]) for x in whole]
    for found, expected in zip(on_all(groups, run), wanted, strict=True):
        assert torch.equal(found, expected)


def test_more_than_a_slot_is_not_captured(
    pair: tuple[RankMemory, list[SharedMemoryGroup]],
) -> None:
    kernels = pair[1][0]._kernels
    x = torch.zeros(9, SLOT_BYTES // 4 // 8)
    with pytest.raises(CaptureError, match="--cuda-graph-max-bs 8"), kernels.capture(Arena()):
        pair[1][0].sum(x)


def exchange_by_threads(size: int) -> Callable[[int], Exchange]:
    meeting = Meeting(size)
    return lambda rank: ThreadGroup(meeting, rank, size).exchange


@pytest.mark.parametrize("isa", FLOATS)
@pytest.mark.parametrize(
    ("size", "counts"), [(1, [3]), (2, [5]), (3, [9, 1, 0]), (4, [7, 2]), (4, [1, 1, 1, 1])]
)
def test_tokens_travel_as_those_of_the_slow_twin(size: int, counts: list[int], isa: str) -> None:
    """What nobody asks for stays; sums are added in the order of the ranks."""
    columns, each = 37, 2
    _, groups = make_groups(size, isa)
    twins = exchange_by_threads(size)
    whole = torch.randn(sum(counts), columns)
    made = [torch.randn(sum(counts), columns) for _ in range(size)]

    def run(one: SharedMemoryGroup) -> Tensor:
        rank = one.rank
        spread = make_spread(rank, size, counts, each, sum(counts))
        tokens = spread.tokens(spread.engine(rank, size))
        own = whole[tokens.start : tokens.stop]
        came = one.dispatch(own, spread)
        asked = spread.ranks(rank, size)[:, rank]
        wanted = dispatch_rows(own, spread, rank, size, twins(rank))
        assert torch.equal(came[asked], whole[asked]) and torch.equal(wanted[asked], whole[asked])
        found = one.collect(made[rank], spread)
        assert torch.equal(found, collect_rows(made[rank], spread, rank, size, twins(rank)))
        return found

    for rank, found in enumerate(on_all(groups, run)):
        spread = make_spread(rank, size, counts, each, sum(counts))
        tokens = spread.tokens(spread.engine(rank, size))
        parts = [spread.ranks(rank, size)[:, [r]] * made[r] for r in range(size)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        assert torch.equal(found, total[tokens.start : tokens.stop])


def test_many_tokens_travel_in_pieces() -> None:
    columns, counts, each = SLOT_BYTES // 4 // 8, [9, 6], 2  # 4 rows of each engine at once
    _, groups = make_groups(2)
    whole = torch.randn(sum(counts), columns)

    def run(one: SharedMemoryGroup) -> Tensor:
        spread = make_spread(one.rank, 2, counts, each, 3)
        tokens = spread.tokens(one.rank)
        came = one.dispatch(whole[tokens.start : tokens.stop], spread)
        asked = spread.ranks(one.rank, 2)[:, one.rank]
        assert torch.equal(came[asked], whole[asked])
        return one.collect(came, spread)

    times = make_spread(0, 2, counts, each, 3).ranks(0, 2).sum(1, keepdim=True)
    assert torch.equal(torch.cat(on_all(groups, run)), whole * times)


def test_captured_tokens_travel_with_fewer_of_each_engine() -> None:
    _, groups = make_groups(4)
    assert len(on_all(groups, travel_captured)) == 4


def test_the_least_of_all_ranks() -> None:
    _, groups = make_groups(3)
    numbers = [[5, -(1 << 62), 0], [4, 7, -1], [9, 1 << 62, 1]]
    found = on_all(groups, lambda one: torch.tensor(one.minimum(numbers[one.rank])))
    assert all(each.tolist() == [4, -(1 << 62), -1] for each in found)


def test_parts_of_a_group_do_not_hear_each_other() -> None:
    _, groups = make_groups(6)

    def run(one: SharedMemoryGroup) -> Tensor:
        mixed = one.divide([[0, 3], [5, 1], [2], [4]])
        halves = one.divide([[0, 1, 2], [3, 4, 5]])
        mine = torch.full((2, 3), float(one.rank + 1))
        assert (mixed is SINGLE_RANK) == (one.rank in (2, 4))
        return torch.stack([mixed.sum(mine.clone()), halves.sum(mine.clone()), one.sum(mine)])

    found = [result[:, 0, 0].tolist() for result in on_all(groups, run)]
    assert [each[0] for each in found] == [5.0, 8.0, 3.0, 5.0, 5.0, 8.0]
    assert [each[1] for each in found] == [6.0] * 3 + [15.0] * 3
    assert {each[2] for each in found} == {21.0}
    with pytest.raises(ValueError, match="none"):
        make_groups(2)[1][0].divide([[1]])


def test_nobody_waits_for_a_rank_that_has_died(
    pair: tuple[RankMemory, list[SharedMemoryGroup]],
) -> None:
    memory, groups = pair
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(RankLost):
            groups[0].sum(torch.ones(3, 40))
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not ended.wait(0.3)
    memory.abandon()
    assert ended.wait(10)
    waiting.join()
    with pytest.raises(RankLost):
        groups[0].minimum([1])  # nor is anybody awaited later


def test_nobody_takes_what_a_captured_step_has_made_of_a_rank_that_has_died() -> None:
    """Another engine may have lost it, and this one's ranks all answer."""
    (memory,), step = rank_memories(1), SimpleNamespace()
    platform, x = NativePlatform(detect("cpu"), Kernels(1)), torch.ones(1, 8)
    group = platform.join(Rendezvous(rank=0, size=2, meeting="", memory=memory))
    graph, _ = platform.recorder().capture(lambda: group.sum(x), StepShape(1, 1))
    memory.abandon()
    with pytest.raises(RankLost):
        graph.replay(cast(Any, step), StepShape(1, 1))
