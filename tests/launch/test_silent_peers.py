"""A machine that has gone is noticed, and one whose process is only busy is left alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from vivace.launch import silent_peers
from vivace.launch.silent_peers import PeerWatch, is_silent

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_INFO"), reason="this system does not tell of connections"
)
PEER = """
import socket, sys, time
server = socket.create_server(("10.78.0.2", 5000))
print("listening", flush=True)
ends = [server.accept()[0] for _ in range(2)]
time.sleep(60)
"""
WATCHER = """
import select, socket, sys, time
from vivace.launch.silent_peers import PeerWatch
watch = PeerWatch()
ends = [socket.create_connection(("10.78.0.2", 5000)) for _ in range(2)]
for end, name in zip(ends, ("idle", "sending"), strict=True):
    watch.add(end, name)
print("connected", flush=True)
sys.stdin.readline()
began = time.monotonic()
ends[1].sendall(b"lost")
while len(ended := select.select(ends, [], [], 10)[0]) < 2 and time.monotonic() - began < 10:
    time.sleep(0.05)
print(len(ended), time.monotonic() - began, flush=True)
"""


def fill(sock: socket.socket) -> None:
    """Until the other end has no room."""
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16))


def test_who_does_not_read_is_no_machine_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that computes for minutes."""
    monkeypatch.setattr(silent_peers, "GONE_SECONDS", 1.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0],
    ):
        PeerWatch().add(ours, "rank 1")
        fill(ours)
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            assert not is_silent(ours)
            time.sleep(0.1)
        with pytest.raises(BlockingIOError):  # it is still open
            ours.recv(1)


def test_connections_that_are_closed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody looks any more, until there is another one."""
    monkeypatch.setattr(silent_peers, "LOOK_SECONDS", 0.02)
    watch = PeerWatch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(2):
            ours = socket.create_connection(server.getsockname())
            watch.add(ours, "rank 1")
            assert watch._looks
            ours.close()
            deadline = time.monotonic() + 5
            while watch._looks:
                assert time.monotonic() < deadline
                time.sleep(0.02)


def run(*words: str) -> None:
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("network namespaces cannot be made here")


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    names = f"vvc{os.getpid()}", f"vvd{os.getpid()}"
    try:
        for name in names:
            run("ip", "netns", "add", name)
        ends = ("netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
        run("ip", "link", "add", "wire", *ends)
        for number, name in enumerate(names, 1):
            run("ip", "-n", name, "addr", "add", f"10.78.0.{number}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def start(machine: str, program: str) -> subprocess.Popen[str]:
    words = "ip", "netns", "exec", machine, sys.executable, "-c", program
    return subprocess.Popen(words, stdin=-1, stdout=-1, text=True)


def test_a_machine_that_is_gone_is_noticed_within_seconds(machines: tuple[str, str]) -> None:
    """By a connection on which bytes are on their way, and by one that is idle."""
    peer = start(machines[1], PEER)
    try:
        assert peer.stdout is not None
        peer.stdout.readline()
        watcher = start(machines[0], WATCHER)
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "connected\n"
        run("ip", "-n", machines[1], "link", "set", "wire", "down")
        said, _ = watcher.communicate("cut\n", 30)
    finally:
        peer.kill()
        peer.wait()
    ended, seconds = said.split()
    assert int(ended) == 2
    assert float(seconds) < 5.5
