"""How ranks come to be: whoever fails says why, and who lives is not blamed."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.msgpack import Decoder

from vivace.config.child_process import adopt_orphans
from vivace.engine.process_group import find_cause
from vivace.errors import CANNOT_START, CannotStart, RankLost
from vivace.launch import ranks
from vivace.launch.forked_processes import AdoptedProcess
from vivace.launch.ranks import RankBroadcast, RankProcess
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import FromRank, RankFailure, RankForked, ToRank
from vivace.system_calls import ChildFile, open_memory

BUSY = "Address already in use"
FORKING = """
import os, sys
from vivace.launch import child

child.load_torch_library = child.import_module = lambda *_: None
forks, last = [], int(sys.argv.pop(1))
fork = os.fork

def limited():
    forks.append(1)
    if len(forks) >= last:
        raise BlockingIOError(11, os.strerror(11))
    return fork()

os.fork = limited
child.end(child.main(sys.argv[1:]))
"""


def no_broadcast(readers: int) -> RankBroadcast:
    plans = open_memory("plans")
    broadcast = RankBroadcast(plans, readers)
    os.close(plans)
    return broadcast


class Forked:
    """Ranks whose template has done its work, played by the test."""

    def __init__(self, count: int, code: int = 0) -> None:
        self.template = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
        broadcast = no_broadcast(count)
        pairs = [socket.socketpair() for _ in range(count)]
        self.links = [
            RankProcess(f"rank {1 + reader}", self.template, ours, broadcast, reader)
            for reader, (ours, _) in enumerate(pairs)
        ]
        self.ranks: list[MessageSocket[ToRank]] = [
            MessageSocket(theirs, Decoder(ToRank)) for _, theirs in pairs
        ]
        self.template.wait(10)


@pytest.fixture
def forked() -> Iterator[Forked]:
    found = Forked(3)
    yield found
    for link, rank in zip(found.links, found.ranks, strict=True):
        rank.close()
        link.close()


def test_who_waits_for_the_others_is_not_blamed(forked: Forked) -> None:
    """One cannot listen; the process that forked all has ended, as it should."""
    forked.ranks[1].send(RankForked(os.getpid()))
    forked.ranks[0].send(RankFailure(BUSY))
    forked.ranks[0].close()
    with pytest.raises(RankLost, match="use"):
        forked.links[0].arrive()
    cause = find_cause(forked.links)
    assert "rank 1" in cause and cause.endswith(BUSY)
    assert forked.links[1].death() is None
    assert forked.links[1].expect(RankForked).pid == os.getpid()


def test_one_that_never_came_is_named(forked: Forked) -> None:
    assert find_cause(forked.links) == ""
    forked.ranks[2].close()
    death = forked.links[2].death(5.0)
    assert death is not None and not death.reported
    assert "rank 3" in find_cause(forked.links) and "exit code 0" not in death.text


def test_what_the_template_fails_over_all_ranks_say() -> None:
    found = Forked(2, code=1)
    for rank in found.ranks:
        rank.send(RankFailure("ImportError: no"))
        rank.close()
    assert find_cause(found.links).endswith("(and 1 more ranks)")
    assert "ImportError" in find_cause(found.links)


def test_a_template_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank is there; the others it may not even have forked."""
    monkeypatch.setattr(ranks, "COMING_SECONDS", 0.2)
    found = Forked(1)
    with subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE) as template:
        found.links[0]._template = template
        found.ranks[0].send(RankForked(os.getpid()))
        with pytest.raises(RankLost, match=str(template.pid)):
            found.links[0].arrive()
    found.ranks[0].close()
    found.links[0].close()


def test_without_a_process_for_ranks_the_start_ends_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    seats: Any = [(1, SimpleNamespace(plans=0), 0)]
    config: Any = None
    with pytest.raises(CannotStart, match="ulimit"):
        ranks.spawn_ranks(config, seats, 2, (0, 0))


@pytest.mark.parametrize(("fork", "lost"), [(1, 0), (2, 0), (3, 1)])
def test_a_fork_that_fails_says_why(fork: int, lost: int) -> None:
    """Of the template or of the process between; to all ranks that have no process."""
    pairs = [socket.socketpair() for _ in range(3)]
    theirs = [end.fileno() for _, end in pairs]
    words = ["rank", "--parent", str(os.getpid()), "--control", *map(str, theirs)]
    template = subprocess.Popen([sys.executable, "-c", FORKING, str(fork), *words], pass_fds=theirs)
    for _, end in pairs:
        end.close()
    assert template.wait(30) == CANNOT_START
    for ours, _ in pairs[lost:]:
        control = MessageSocket(ours, Decoder(FromRank))
        message = control.wait(5.0)
        assert isinstance(message, RankFailure) and "ulimit -u" in message.text
        with pytest.raises(SocketClosed):
            control.wait(5.0)
    for ours, _ in pairs:
        ours.close()


def test_ranks_that_die_right_behind_their_fork_are_reaped() -> None:
    """By whoever started them, which may live on: asked for, only looked at, or given up."""
    adopt_orphans()
    pairs = [socket.socketpair() for _ in range(3)]
    theirs = [end.fileno() for _, end in pairs]
    words = ["rank", "--parent", str(os.getpid()), "--control", *map(str, theirs)]
    dying = FORKING.replace("child.end", "child.run = lambda *_: os._exit(3)\nchild.end")
    template = subprocess.Popen([sys.executable, "-c", dying, "99", *words], pass_fds=theirs)
    broadcast = no_broadcast(3)
    links = [
        RankProcess(f"rank {reader}", template, ours, broadcast, reader)
        for reader, (ours, _) in enumerate(pairs)
    ]
    for _, end in pairs:
        end.close()
    with pytest.raises(RankLost, match="code"):
        links[0].arrive()
    death = links[1].death(5.0)
    assert death is not None and "exit code 3" in death.text
    for link in links:
        link.close()
    assert len({link.pid for link in links} | {template.pid}) == 4
    assert not any(Path(f"/proc/{link.pid}").exists() for link in links)


def spawn(code: int) -> int:
    return os.posix_spawn(
        sys.executable, [sys.executable, "-Sc", f"raise SystemExit({code})"], dict(os.environ)
    )


def count_followed() -> int:
    """Descriptors that follow a process; threads of other tests may still close files of theirs."""
    links = [str(one) for one in Path("/proc/self/fd").iterdir()]
    return sum(os.path.realpath(one).endswith("[pidfd]") for one in links)


def test_processes_that_ended_hold_no_descriptor() -> None:
    gc.collect()
    before = count_followed()
    for code in range(3):
        process = AdoptedProcess(spawn(code))
        assert count_followed() - before == isinstance(process._child, ChildFile)
        assert process.wait(10) == process.wait() == code
        process.kill()
        del process
    assert count_followed() == before


def test_a_kill_is_for_the_process_and_not_for_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else may have reaped it, and its number be another one's."""
    ended = AdoptedProcess(spawn(0))
    os.waitpid(ended.pid, 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: pytest.fail(f"{number} to {pid}"))
        ended.kill()
    lives = subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"])
    AdoptedProcess(lives.pid).kill()
    assert lives.wait(10) == -signal.SIGKILL


def test_descriptors_may_be_many() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("the limit on open files is low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.dup(0) for _ in range(1100)]
    try:
        process = AdoptedProcess(spawn(3))
        deadline = time.monotonic() + 10.0
        lives = subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"])
        with pytest.raises(subprocess.TimeoutExpired):
            AdoptedProcess(lives.pid).wait(0.0)
        lives.kill()
        lives.wait(10)
        assert process.wait(deadline - time.monotonic()) == 3
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
