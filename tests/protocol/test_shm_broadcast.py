"""What one process tells several through a ring in shared memory: whole, in order, never blocked by
a reader that has died."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.protocol import shm_broadcast
from vivace.protocol.futex import Futex
from vivace.protocol.shm_broadcast import (
    ANSWERS,
    RING_BYTES,
    BroadcastClosed,
    BroadcastReader,
    BroadcastWriter,
)
from vivace.system_calls import open_memory

SMALL = 256


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = open_memory("test")
    yield descriptor
    os.close(descriptor)


def read_all(reader: BroadcastReader, into: list[bytes]) -> None:
    with pytest.raises(BroadcastClosed):
        while (message := reader.receive(10.0)) is not None:
            into.append(message)
            reader.answer(len(message))


def in_thread(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


@settings(max_examples=40, deadline=None)
@given(messages=st.lists(st.binary(max_size=5 * SMALL), max_size=20), readers=st.integers(1, 3))
def test_every_reader_has_every_message_whole_and_in_order(
    messages: list[bytes], readers: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shm_broadcast, "RING_BYTES", SMALL)
        descriptor = open_memory("test")
        writer = BroadcastWriter(descriptor, readers)
        ends = [BroadcastReader(descriptor, readers, index) for index in range(readers)]
        os.close(descriptor)
        found: list[list[bytes]] = [[] for _ in ends]
        threads = [
            in_thread(lambda end=end, into=into: read_all(end, into))
            for end, into in zip(ends, found, strict=True)
        ]
        for count, message in enumerate(messages, 1):
            writer.send(message)
            if count % 2:
                assert [writer.answer(one, count, 10.0) for one in range(readers)] == [
                    len(message)
                ] * readers
        writer.close()
        for thread in threads:
            thread.join(10)
        assert found == [messages] * readers


def test_a_message_longer_than_the_ring_goes_in_parts(memory: int) -> None:
    writer, reader = BroadcastWriter(memory, 1), BroadcastReader(memory, 1, 0)
    long = os.urandom(3 * RING_BYTES + 5)
    found: list[bytes] = []
    thread = in_thread(lambda: read_all(reader, found))
    for message in (b"before", long, b"behind"):
        writer.send(message)
    writer.close()
    thread.join(10)
    assert found == [b"before", long, b"behind"]


def test_a_slow_reader_holds_the_writer_only_when_the_ring_is_full(memory: int) -> None:
    writer, slow = BroadcastWriter(memory, 2), BroadcastReader(memory, 2, 1)
    quick = BroadcastReader(memory, 2, 0)
    message = bytes(RING_BYTES // 4)
    for _ in range(3):
        writer.send(message)
        assert quick.receive(1.0) == message
    sent = threading.Event()
    thread = in_thread(lambda: (writer.send(message), writer.send(message), sent.set()))
    assert not sent.wait(0.2)
    assert slow.receive(1.0) == message
    assert slow.receive(1.0) == message
    assert quick.receive(1.0) == message
    assert sent.wait(10)
    thread.join(10)


def test_nobody_waits_for_a_reader_that_has_died(memory: int) -> None:
    writer, _ = BroadcastWriter(memory, 1), BroadcastReader(memory, 1, 0)
    sent = threading.Event()
    thread = in_thread(lambda: (writer.send(bytes(2 * RING_BYTES)), sent.set()))
    assert not sent.wait(0.1)
    writer.leave(0)
    assert sent.wait(10)
    thread.join(10)
    begun = time.monotonic()
    assert writer.answer(0, 1, 10.0) is None
    assert time.monotonic() - begun < 5


def test_an_answer_comes_before_the_death_behind_it(memory: int) -> None:
    writer, reader = BroadcastWriter(memory, 1), BroadcastReader(memory, 1, 0)
    reader.answer(-1)
    writer.leave(0)
    assert writer.answer(0, 1, 0.0) == -1
    assert writer.answer(0, 2, 0.0) is None


def test_answers_are_kept_while_others_come(memory: int) -> None:
    writer, reader = BroadcastWriter(memory, 2), BroadcastReader(memory, 2, 1)
    for number in range(3 * ANSWERS):
        reader.answer(number - ANSWERS)
        if number >= ANSWERS:
            assert writer.answer(1, number - 5, 0.0) == number - 6 - ANSWERS
    assert writer.answer(0, 1, 0.01) is None


def test_a_reader_that_hears_nothing_looks_up(memory: int) -> None:
    writer, reader = BroadcastWriter(memory, 1), BroadcastReader(memory, 1, 0)
    assert reader.receive(0.01) is None
    writer.send(b"one")
    writer.close()
    assert reader.receive(0.0) == b"one"
    with pytest.raises(BroadcastClosed):
        reader.receive(10.0)


def test_what_is_written_and_closed_while_somebody_looks_is_read(memory: int) -> None:
    writer, reader = BroadcastWriter(memory, 1), BroadcastReader(memory, 1, 0)
    words, looks = reader._words, list[int]()

    class Words:
        """Between two looks the writer says its last."""

        def __getitem__(self, word: int) -> int:
            found = words[word]
            looks.append(word)
            if len(looks) == 1:
                writer.send(b"last")
                writer.close()
            return found

        def __setitem__(self, word: int, value: int) -> None:
            words[word] = value

    reader._words = cast(Any, Words())
    assert reader.receive(10.0) == b"last"
    with pytest.raises(BroadcastClosed):
        reader.receive(10.0)


def test_a_machine_without_a_known_futex_sleeps_a_little(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    writer, reader = BroadcastWriter(memory, 1), BroadcastReader(memory, 1, 0)
    assert reader.receive(0.01) is None
    writer.send(b"one")
    assert reader.receive(1.0) == b"one"


def test_an_address_that_is_none_is_said() -> None:
    with pytest.raises(OSError, match="address"):
        Futex(8).wait(0, 0.01)
