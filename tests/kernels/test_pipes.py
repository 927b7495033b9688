"""Pipes between ranks: over shared memory, where ranks are threads with their own kernels, and by
gloo, where they are processes. Both hand on what was sent, in its order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from descriptors import rank_memories
from every_isa import FLOATS, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.errors import RankLost
from vivace.platforms.cpu.native import Arena, Kernels
from vivace.platforms.cpu.pipe import LINE, SLOT_BYTES, SLOTS
from vivace.platforms.cpu.shared_group import SharedMemoryGroup
from vivace.platforms.errors import CaptureError
from vivace.platforms.groups import SINGLE_RANK, Pipe, TorchGroup, open_store
from vivace.platforms.rendezvous import RankMemory

F32 = torch.float32
Ends = tuple[SharedMemoryGroup, Pipe]


def make_ends(isa: str | None = None) -> tuple[RankMemory, Ends, Ends]:
    """(memory, sender's group and pipe, receiver's): ranks 0 and 2 of three."""
    memories = rank_memories(3)
    groups = [
        SharedMemoryGroup(Kernels(1 + rank % 2, isa=isa), memories[rank], rank, 3)
        for rank in range(3)
    ]
    pairs = [(0, 1), (0, 2), (2, 0)]
    found = [group.connect(pairs) for group in groups]
    assert [sorted(one) for one in found] == [pairs, [(0, 1)], [(0, 2), (2, 0)]]
    return memories[0], (groups[0], found[0][0, 2]), (groups[2], found[2][0, 2])


def beside(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def lines(messages: list[tuple[int, int]]) -> list[Tensor]:
    made = torch.Generator().manual_seed(len(messages))
    return [torch.randn(rows, columns + 3, generator=made)[:, 1:-2] for rows, columns in messages]


SHAPES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 70)), max_size=12)


@needs_kernels
@pytest.mark.parametrize("isa", FLOATS)
def test_rows_arrive_in_their_order(isa: str) -> None:
    """Of other shapes each time, with gaps between them, more of them than there are slots."""
    _, (_, sender), (_, receiver) = make_ends(isa)
    sent = lines([(1, 1), (5, 37), (17, 1024), (0, 8), (3, 576), (1, 64), (2, 2), (9, 9)])
    thread = beside(lambda: [sender.send(x) for x in sent])  # type: ignore[arg-type, return-value]
    for x in sent:
        assert torch.equal(receiver.receive(len(x), x.shape[1], F32), x)
    thread.join(10)


@needs_kernels
def test_a_sender_waits_when_it_is_too_far_ahead() -> None:
    _, (_, sender), (_, receiver) = make_ends()
    for number in range(SLOTS):
        sender.send(torch.full((2, 3), float(number)))
    sixth = threading.Event()

    def send() -> None:
        sender.send(torch.full((2, 3), float(SLOTS)))
        sixth.set()

    thread = beside(send)
    assert not sixth.wait(0.3)
    assert receiver.receive(2, 3, F32)[0, 0] == 0
    assert sixth.wait(10)
    thread.join()
    assert [float(receiver.receive(2, 3, F32)[1, 2]) for _ in range(SLOTS)] == [1, 2, 3, 4]


@needs_kernels
def test_long_messages_come_in_pieces() -> None:
    _, (group, sender), (_, receiver) = make_ends()
    columns = (SLOT_BYTES - LINE) // 4 // 2  # two rows in a slot
    x = torch.randn(5, columns)
    thread = beside(lambda: sender.send(x))
    assert torch.equal(receiver.receive(5, columns, F32), x)
    thread.join()
    with pytest.raises(ValueError, match="rows"):
        sender.send(torch.zeros(1, SLOT_BYTES // 4))
    with pytest.raises(ValueError, match="float16"):
        receiver.receive(1, 1, torch.float16)
    kernels = group._kernels
    with pytest.raises(CaptureError, match="--cuda-graph-max-bs 2"), kernels.capture(Arena()):
        sender.send(x)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_nobody_sent_are_not_received(rows: int) -> None:
    """The ends have lost their place: what lies in the slot is another message."""
    memory, (_, sender), (_, receiver) = make_ends()
    sender.send(torch.ones(2, 3))
    with pytest.raises(RankLost):
        receiver.receive(rows, 3, F32)
    assert memory.abandoned


@needs_kernels
def test_captured_ends_serve_fewer_rows() -> None:
    _, (giver, sender), (taker, receiver) = make_ends()
    x, whole = torch.randn(6, 40), torch.randn(6, 40)
    with giver._kernels.capture(Arena()) as sending:
        sender.send(x)
    with taker._kernels.capture(Arena()) as receiving:
        y = receiver.receive(6, 40, F32)
    for rows in (6, 1, 0, 4):
        x[:] = whole + rows
        sending.run(rows)
        receiving.run(rows)
        assert torch.equal(y[:rows], whole[:rows] + rows)


@needs_kernels
def test_nobody_waits_for_a_rank_that_has_died() -> None:
    memory, (_, sender), (_, receiver) = make_ends()
    lost = []

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except RankLost:
            lost.append(1)

    for _ in range(SLOTS):
        sender.send(torch.ones(1, 1))
    for _ in range(SLOTS):
        receiver.receive(1, 1, F32)
    waiting = beside(lambda: wait(lambda: receiver.receive(1, 1, F32)))
    waiting.join(0.3)
    assert waiting.is_alive()
    memory.abandon()
    waiting.join(10)
    wait(lambda: [sender.send(torch.ones(1, 1)) for _ in range(SLOTS + 1)])
    assert lost == [1, 1]


@needs_kernels
@settings(max_examples=20, deadline=None)
@given(messages=SHAPES)
def test_slots_do_not_mix(messages: list[tuple[int, int]]) -> None:
    """Either end may be ahead."""
    _, (_, sender), (_, receiver) = make_ends()
    sent, found = lines(messages), list[Tensor]()
    thread = beside(lambda: found.extend(receiver.receive(len(x), x.shape[1], F32) for x in sent))
    for x in sent:
        sender.send(x)
    thread.join(10)
    assert all(torch.equal(x, y) for x, y in zip(sent, found, strict=True))


def test_a_single_rank_is_connected_to_nobody() -> None:
    assert SINGLE_RANK.connect([]) == {}


def exchange(rank: int, folder: str, sent: list[Tensor]) -> int:
    """What rank 0 sends, rank 1 has; 0 where it has."""
    group = TorchGroup(open_store(f"{folder}/meet", 2), rank, 2)
    (pipe,) = group.connect([(0, 1)]).values()
    same = True
    for x in sent:
        if rank == 0:
            pipe.send(x)
        else:
            same = same and torch.equal(pipe.receive(len(x), x.shape[1], x.dtype), x)
    group.minimum([0])  # nobody ends before both are done
    return int(not same)


def test_gloo_hands_on_the_same(tmp_path: Path) -> None:
    """More at once than a sender may be ahead, of every type."""
    sent = [x.to(dtype) for x in lines([(3, 5), (1, 64)] * 4) for dtype in (F32, torch.bfloat16)]
    ranks = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = exchange(rank, str(tmp_path), sent)
            finally:
                os._exit(code)
        ranks.append(child)
    assert [os.waitpid(child, 0)[1] for child in ranks] == [0, 0]
