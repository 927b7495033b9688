"""Collectives of ranks on several nodes, without machines: each node has memory of its own, and its
first rank is connected to those of the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from descriptors import rank_memories
from every_isa import needs_kernels
from expert_spreads import make_spread, travel_captured
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.errors import RankLost
from vivace.platforms.cpu.native import Arena, Kernels
from vivace.platforms.cpu.shared_group import SLOT_BYTES, SharedMemoryGroup
from vivace.platforms.rendezvous import NodeSocket, RankMemory

pytestmark = needs_kernels


class Cables:
    """Between nodes, which have these ranks."""

    def __init__(self, nodes: Sequence[Sequence[int]]) -> None:
        self.nodes = nodes
        self.ends: dict[tuple[int, int, int], socket.socket] = {}
        self._lock = threading.Lock()

    def end(self, group: int, mine: int, theirs: int) -> socket.socket:
        with self._lock:
            if (group, mine, theirs) not in self.ends:
                ends = socket.socketpair()
                self.ends[group, mine, theirs], self.ends[group, theirs, mine] = ends
            return self.ends[group, mine, theirs]


class CableSockets:
    """`NodeSockets` of one rank."""

    def __init__(self, cables: Cables, rank: int) -> None:
        self._cables, self._rank = cables, rank

    def open(self, group: int, ranks: Sequence[int]) -> list[NodeSocket] | None:
        parts = [[rank for rank in ranks if rank in node] for node in self._cables.nodes]
        parts = [part for part in parts if part]
        mine = next(part for part in parts if self._rank in part)
        if len(parts) == 1:
            return None
        if mine[0] != self._rank:
            return []
        return [
            NodeSocket(
                socket=self._cables.end(group, self._rank, part[0]).fileno(),
                first=list(ranks).index(part[0]),
                count=len(part),
            )
            for part in parts
            if part is not mine
        ]


class Cluster:
    def __init__(self, *counts: int) -> None:
        numbers = iter(range(sum(counts)))
        self.nodes = [[next(numbers) for _ in range(count)] for count in counts]
        self.cables = Cables(self.nodes)
        self.memories: list[RankMemory] = []
        self.kernels: list[Kernels] = []
        for ranks in self.nodes:
            self.memories += rank_memories(len(ranks))
            self.kernels += [Kernels(1 + rank % 2) for rank in ranks]

    def on_all(self, run: Callable[[SharedMemoryGroup], Tensor]) -> list[Tensor]:
        """What each rank gets."""
        found: dict[int, Tensor] = {}
        errors: list[Exception] = []

        def work(rank: int) -> None:
            try:
                found[rank] = run(
                    SharedMemoryGroup(
                        self.kernels[rank],
                        self.memories[rank],
                        rank,
                        len(self.memories),
                        sockets=CableSockets(self.cables, rank),
                    )
                )
            except Exception as error:
                errors.append(error)

        threads = [
            threading.Thread(target=work, args=(rank,)) for rank in range(len(self.memories))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for error in errors:
            raise error
        return [found[rank] for rank in range(len(self.memories))]


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 1), (1, 1, 1), (2, 1, 3)])
def test_sums_are_those_of_one_node(counts: tuple[int, ...]) -> None:
    """Bit for bit: added in the order of the ranks."""
    shapes = [(1, 1), (1, 576), (5, 37), (0, 8), (17, 1024)]
    size = sum(counts)
    parts = [[torch.randn(shape) for _ in range(size)] for shape in shapes]

    def run(one: SharedMemoryGroup) -> Tensor:
        return torch.cat([one.sum(part[one.rank].clone()).flatten() for part in parts])

    wanted = []
    for part in parts:
        whole = part[0].clone()
        for other in part[1:]:
            whole += other
        wanted.append(whole.flatten())
    for found in Cluster(*counts).on_all(run):
        assert torch.equal(found, torch.cat(wanted))


def test_uneven_parts_and_rows() -> None:
    widths, counts = [5, 4, 4], [3, 0, 6]
    whole = torch.randn(7, 13)
    below = torch.randn(9, 5)
    every = [torch.randn(9, 5) for _ in range(3)]

    def run(one: SharedMemoryGroup) -> Tensor:
        beside = one.gather(whole.split(widths, 1)[one.rank], widths)
        rows = one.gather_rows(below.split(counts)[one.rank], counts)
        mine = one.reduce_scatter(every[one.rank], counts, one.rank)
        least = one.minimum([5 + one.rank, -(1 << 62) - one.rank])
        assert torch.equal(mine, (every[0] + every[1] + every[2]).split(counts)[one.rank])
        assert least == [5, -(1 << 62) - 2]
        return torch.cat([beside.flatten(), rows.flatten()])

    for found in Cluster(2, 1).on_all(run):
        assert torch.equal(found, torch.cat([whole.flatten(), below.flatten()]))


def test_more_than_a_socket_takes_at_once() -> None:
    """Both send before either has read: nobody may wait for the other to read first."""
    rows, columns = 34, SLOT_BYTES // 4 // 16
    parts = [torch.randn(rows, columns) for _ in range(2)]
    for found in Cluster(1, 1).on_all(lambda one: one.sum(parts[one.rank].clone())):
        assert torch.equal(found, parts[0] + parts[1])


def test_parts_of_a_group_within_nodes_and_across() -> None:
    cluster = Cluster(2, 2)

    def run(one: SharedMemoryGroup) -> Tensor:
        within = one.divide([[0, 1], [2, 3]])
        across = one.divide([[0, 2], [1, 3]])
        mine = torch.full((2, 3), float(one.rank + 1))
        return torch.stack([group.sum(mine.clone()) for group in (within, across, one)])

    found = [result[:, 0, 0].tolist() for result in cluster.on_all(run)]
    assert found == [[3.0, 4.0, 10.0], [3.0, 6.0, 10.0], [7.0, 4.0, 10.0], [7.0, 6.0, 10.0]]
    assert {len({key[0] for key in cluster.cables.ends})} == {3}  # all, and two that are across


def test_a_captured_step_has_them_too() -> None:
    whole = [torch.randn(6, 40) for _ in range(3)]

    def run(one: SharedMemoryGroup) -> Tensor:
        kernels, arena = one._kernels, Arena()
        with kernels.capture(arena) as graph:
            x = kernels.empty(6, 40)
            y = one.gather(one.sum(x), [40] * 3)
        results = []
        for rows in (6, 1, 0, 4):
            x[:] = whole[one.rank]
            graph.run(rows)
            results.append(y[:rows].clone())
        return torch.cat(results)

    total = whole[0] + whole[1] + whole[2]
    wanted = torch.cat([torch.cat([total[:rows]] * 3, 1) for rows in (6, 1, 0, 4)])
    for found in Cluster(2, 1).on_all(run):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("nodes", "counts"), [((1, 1), [5, 2]), ((2, 2), [7, 0]), ((3, 1), [4, 9]), ((1, 2, 1), [6])]
)
def test_tokens_travel_to_experts_of_other_nodes(nodes: tuple[int, ...], counts: list[int]) -> None:
    """Also of an engine whose ranks are on two nodes; sums as of one node."""
    size, each = sum(nodes), 2
    whole = torch.randn(sum(counts), 37)
    made = [torch.randn(sum(counts), 37) for _ in range(size)]

    def run(one: SharedMemoryGroup) -> Tensor:
        spread = make_spread(one.rank, size, counts, each, 1)
        tokens = spread.tokens(spread.engine(one.rank, size))
        came = one.dispatch(whole[tokens.start : tokens.stop], spread)
        asked = spread.ranks(one.rank, size)[:, one.rank]
        assert torch.equal(came[asked], whole[asked])
        return one.collect(made[one.rank], spread)

    for rank, found in enumerate(Cluster(*nodes).on_all(run)):
        spread = make_spread(rank, size, counts, each, 1)
        tokens = spread.tokens(spread.engine(rank, size))
        parts = [spread.ranks(rank, size)[:, [one]] * made[one] for one in range(size)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        assert torch.equal(found, total[tokens.start : tokens.stop])


def test_captured_tokens_travel_between_nodes() -> None:
    assert len(Cluster(2, 2).on_all(travel_captured)) == 4


def test_pipes_go_between_nodes_as_within_one() -> None:
    """From 0 over 1 (the same node) to 2 (the other one), and back; also captured, and longer than
    a connection keeps."""
    long = torch.randn(3000, 1000)

    def run(one: SharedMemoryGroup) -> Tensor:
        pipes = one.connect([(0, 1), (1, 2), (2, 0)])
        assert len(pipes) == 2
        source = pipes[[(2, 0), (0, 1), (1, 2)][one.rank]]
        target = pipes[[(0, 1), (1, 2), (2, 0)][one.rank]]
        kernels = one._kernels
        results = []
        for x in (torch.ones(1, 5), long, torch.ones(0, 7), torch.full((4, 6), 2.0)[:, :3]):
            if one.rank == 0:
                target.send(x)
            got = source.receive(len(x), x.shape[1], torch.float32)
            if one.rank:
                target.send(got + 1)
            results.append(got.flatten())
        with kernels.capture(Arena()) as graph:
            if one.rank == 0:
                target.send(given_rows)
            kept = source.receive(6, 40, torch.float32)
            if one.rank:
                target.send(kept)
        for rows in (6, 0, 2):
            graph.run(rows)
            results.append(kept[:rows].flatten())
        return torch.cat(results)

    given_rows = torch.randn(6, 40)
    found = Cluster(2, 1).on_all(run)
    parts = torch.cat([torch.ones(5), long.flatten(), torch.full((12,), 2.0)])
    again = torch.cat([given_rows[:rows].flatten() for rows in (6, 0, 2)])
    for rank, added in ((0, 2.0), (1, 0.0), (2, 1.0)):
        wanted = parts + 1.0 + (added - 1.0) if added else parts
        assert torch.allclose(found[rank][: len(parts)], wanted)
        assert torch.equal(found[rank][len(parts) :], again)


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    calls=st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(1, 70)), max_size=20),
)
def test_many_in_a_row_do_not_mix(counts: list[int], calls: list[tuple[bool, int, int]]) -> None:
    size = sum(counts)

    def run(one: SharedMemoryGroup) -> Tensor:
        sums = []
        for number, (gathers, rows, columns) in enumerate(calls):
            x = torch.full((rows, columns), float(1 + number + one.rank))
            y = one.gather(x, [columns] * size) if gathers else one.sum(x)
            sums.append(y.sum().reshape(1))
        return torch.cat(sums) if sums else torch.zeros(0)

    wanted = [
        float(rows * columns * (size * (1 + number) + size * (size - 1) // 2))
        for number, (_, rows, columns) in enumerate(calls)
    ]
    for found in Cluster(*counts).on_all(run):
        assert found.tolist() == wanted


def test_a_connection_that_breaks_ends_the_waiting_on_its_node() -> None:
    cluster = Cluster(2, 1)

    def run(one: SharedMemoryGroup) -> Tensor:
        one.sum(torch.ones(1, 4))
        if one.rank == 2:
            for end in cluster.cables.ends.values():
                end.shutdown(socket.SHUT_RDWR)
            return torch.zeros(1)
        with pytest.raises(RankLost):
            one.sum(torch.ones(1, 4))
        return torch.zeros(1)

    cluster.on_all(run)
    assert cluster.memories[0].abandoned
    assert not cluster.memories[2].abandoned


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 16,  # another collective, and no length
        (1).to_bytes(8, "little") + (1 << 40).to_bytes(8, "little"),  # more than a slot
        (1).to_bytes(8, "little") + (1 << 63).to_bytes(8, "little"),  # less than nothing
        (3).to_bytes(8, "little") + (4).to_bytes(8, "little"),  # a later one
    ],
)
def test_what_is_no_share_is_not_read_into_memory(sent: bytes) -> None:
    cluster = Cluster(1, 1)
    cluster.cables.end(0, 1, 0)
    group = SharedMemoryGroup(
        cluster.kernels[0], cluster.memories[0], 0, 2, sockets=CableSockets(cluster.cables, 0)
    )
    number = next(key[0] for key in cluster.cables.ends if key[0])
    cluster.cables.ends[number, 1, 0].sendall(sent)
    with pytest.raises(RankLost):
        group.sum(torch.ones(1, 4))
