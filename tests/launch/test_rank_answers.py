"""What a rank answers reaches its engine, however large it is and whatever the engine does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from msgspec.msgpack import Decoder

from vivace.errors import RankLost
from vivace.launch import ranks
from vivace.launch.ranks import RankBroadcast, RankProcess
from vivace.protocol.message_socket import SEND_SECONDS, MessageSocket
from vivace.protocol.messages import Capacity
from vivace.protocol.ranks import ON_SOCKET, FromRank, RankFailure, RankReady, ToRank
from vivace.protocol.shm_broadcast import BroadcastReader
from vivace.protocol.step import StepResult
from vivace.system_calls import open_memory


class Rank:
    """The far end of a link, played by the test; `process` is there to die."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        plans = open_memory("plans")
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        broadcast = RankBroadcast(plans, 1)
        self.link = RankProcess("rank 1", self.process, ours, broadcast, 0)
        self.control: MessageSocket[ToRank] = MessageSocket(theirs, Decoder(ToRank))
        self.plans = BroadcastReader(plans, 1, 0)
        os.close(plans)
        self.link.wake_with(lambda: None)
        capacity = Capacity(pages=8, page_size=16, rows=4, context=64, vocabulary=100)
        self.control.send(RankReady(capacity))
        self.link.expect(RankReady)

    def answer(self, message: FromRank) -> None:
        self.control.send(message)
        self.plans.answer(ON_SOCKET)

    def die(self) -> None:
        self.control.close()
        self.process.kill()


@pytest.fixture
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    rank.die()
    rank.link.close()


def result(number: int, mebibytes: int) -> StepResult:
    hidden = bytes([number]) * (mebibytes << 20)
    return StepResult(number=number, advanced=[1], tokens=[[number]], expert_counts=hidden)


def test_a_rank_does_not_wait_for_an_engine_that_computes(rank: Rank) -> None:
    """Six results of a stage that is ahead, one of them larger than any buffer: sent before the
    engine reads the first."""
    sent = threading.Event()

    def run() -> None:
        for number, mebibytes in enumerate((1, 8, 80, 1, 1, 1)):
            rank.answer(result(number, mebibytes))
        sent.set()

    threading.Thread(target=run, daemon=True).start()
    assert sent.wait(3 * SEND_SECONDS)
    for number, mebibytes in enumerate((1, 8, 80, 1, 1, 1)):
        message = rank.link.wait()
        assert isinstance(message, StepResult) and message.number == number
        assert len(message.expert_counts) == mebibytes << 20


def test_what_it_answered_last_comes_before_its_death(rank: Rank) -> None:
    rank.answer(result(7, 0))
    rank.control.send(RankFailure("ValueError: no room", trace="Traceback"))
    rank.die()
    message = rank.link.wait()
    assert isinstance(message, StepResult) and message.number == 7
    with pytest.raises(RankLost, match="room"):
        rank.link.wait()
    death = rank.link.death(5.0)
    assert death is not None and death.reported and death.trace == "Traceback"


def test_nobody_waits_for_an_answer_that_cannot_be_read(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> FromRank:
        raise MemoryError

    monkeypatch.setattr(ranks, "EXIT_SECONDS", 0.2)
    monkeypatch.setattr(rank.link.control, "wait", fail)  # it is waiting for the first one
    for number in range(2):
        rank.answer(result(number, 0))
    rank.link.wait()
    with pytest.raises(RankLost, match="rank 1"):
        rank.link.wait()
    assert "rank 1" in caplog.text and "MemoryError" in caplog.text


def test_to_ask_who_lives_costs_no_system_call(rank: Rank) -> None:
    """It is asked twice a step, of each of up to 63."""
    assert rank.link.death() is None
    waited = rank.link._process.wait
    rank.link._process.wait = None  # type: ignore[assignment,method-assign]
    assert rank.link.death() is None
    rank.link._process.wait = waited  # type: ignore[method-assign]
    rank.die()
    deadline = time.monotonic() + 5.0
    while rank.link.death() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    death = rank.link.death()
    assert death is not None and "SIGKILL" in death.text
