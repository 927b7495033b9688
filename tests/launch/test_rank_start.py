"""What must be so before the processes of ranks are started."""

from __future__ import annotations

import errno
import os
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.msgpack import Decoder

from vivace.checkpoint.weights import STAGE
from vivace.config.child_process import child_environment
from vivace.engine.process_group import RankDeath, find_cause
from vivace.errors import CannotStart
from vivace.launch.rank_progress import LOADING, AllRanks, report_to_engine
from vivace.platforms.groups import require_loopback
from vivace.protocol.message_socket import MessageSocket
from vivace.protocol.ranks import FromRank, RankProgress


def test_without_loopback_the_start_ends_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    require_loopback()

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(CannotStart, match="--tp-size"):
        require_loopback()


def test_ranks_listen_on_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert child_environment()["GLOO_SOCKET_IFNAME"] == "lo"


class FakeLink:
    """A rank whose messages are there already."""

    def __init__(self, name: str, *messages: FromRank) -> None:
        self.name = name
        ours, theirs = socket.socketpair()
        self.control: MessageSocket[FromRank] = MessageSocket(ours, Decoder(FromRank))
        self.rank: MessageSocket[FromRank] = MessageSocket(theirs, Decoder(FromRank))
        for message in messages:
            self.rank.send(message)

    def progress(self) -> list[FromRank]:
        return self.control.receive()


def test_all_ranks_are_one_bar_and_the_first_waits_for_the_last() -> None:
    told: list[float] = []
    early = FakeLink("rank 1", RankProgress(0.1), RankProgress(0.25, done=True))
    late = FakeLink("rank 2", RankProgress(0.2))

    def report(stage: str, fraction: float) -> None:
        told.append(fraction)
        if len(told) == 4:
            late.rank.send(RankProgress(0.3, done=True))

    links: Any = [early, late]
    progress = AllRanks(report, links)
    progress(LOADING, 0.1)
    progress(LOADING, 0.2)
    progress("Loading kernels", 0.5)
    progress(LOADING, 1.0)
    assert told[:3] == pytest.approx([0.55, 0.65, 0.5])
    assert told[3:-1] == pytest.approx([0.65] * len(told[3:-1]))
    assert told[-1] == 1.0


def test_what_a_rank_reads_twice_ends_it_once() -> None:
    """Its last tensor says that all is read, and so does its end."""
    links: Any = [FakeLink("rank 1", *[RankProgress(0.5, done=True)] * 2)]
    told: list[float] = []
    progress = AllRanks(lambda stage, fraction: told.append(fraction), links)
    progress(LOADING, 0.3)
    progress(LOADING, 1.0)
    assert told == [0.3, 1.0]


def test_a_rank_says_what_it_has_read_and_that_it_is_done() -> None:
    said: list[RankProgress] = []
    report = report_to_engine(said.append)
    for fraction in (0.1, 0.2, 1.0):
        report(LOADING, fraction)
    assert said == [RankProgress(0.1), RankProgress(0.2, done=True)]
    assert LOADING == STAGE


def test_what_many_ranks_fail_over_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def ranks(*reasons: str, **how: Any) -> list[Any]:
        deaths = [
            RankDeath(f"rank {number}", reason, reported=True, **how)
            for number, reason in enumerate(reasons, 1)
        ]
        return [SimpleNamespace(death=partial(give, death)) for death in deaths]

    def give(death: RankDeath, wait: float) -> RankDeath:
        return death

    broken = ranks(*["ValueError: no"] * 31, trace="Traceback\n  here")
    assert find_cause(broken) == "rank 1: ValueError: no (and 30 more ranks)"
    assert caplog.text.count("Traceback") == 1
    noticed = ranks("RankLost: gone", "RankLost: gone", noticed=True)
    assert find_cause([*noticed, *broken[:1]]) == "rank 1: ValueError: no"
