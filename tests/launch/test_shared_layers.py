"""What engines that share layers inherit, where the system has no room for it."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_config import LLAMA

from vivace.commands.serve import link_files
from vivace.config.parsing import parse
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.protocol import engine_link
from vivace.protocol.listening_socket import listen, new_socket
from vivace.protocol.shared_memory import new_descriptor, reserve
from vivace.supervisor.engines import Engines
from vivace.supervisor.plan import Plan
from vivace.supervisor.shared_layers import LinkFiles


def descriptors() -> int:
    """Of files without names and of bells, as far as they are held."""
    gc.collect()
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it has just been closed
            found += any(kind in str(one.readlink()) for kind in ("vivace-ranks", "eventfd"))
    return found


@pytest.fixture
def engines() -> Iterator[Engines]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plan = Plan(
            config=b"{}",
            frontends=1,
            listener=listener,
            engines=[listen(new_socket()) for _ in range(2)],
            memory=reserve(new_descriptor(), 1, 2),
            warm_up=False,
            watchdog=None,
            soft_watchdog=None,
            command=lambda role, control: ["sleep", "60"],
            link=LinkFiles(2, nodes=True),
        )
        made = Engines(plan)
        yield made
        for child in made.children:
            child.kill()
            child.process.wait()
            child.close()


@pytest.mark.parametrize("room", [0, 4, 7])
def test_a_restart_waits_for_room(
    engines: Engines, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And holds none of it meanwhile. `room`: for so many descriptors that one call makes."""
    first, second = engines.startable(engines.slots[0])
    before, left = descriptors(), room

    def scarce(number: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            os.close(number)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return number

    with monkeypatch.context() as patched:
        event, memory = os.eventfd, engine_link.open_memory
        patched.setattr(os, "eventfd", lambda *how: scarce(event(*how)))
        patched.setattr(engine_link, "open_memory", lambda *how: scarce(memory(*how)))
        assert engines.start(first) is None
    assert first.due is not None and first.child is None
    assert descriptors() == before
    started = [engines.start(slot) for slot in (first, second)]
    links = [one[1].link for one in started if one is not None]
    assert links[0] is not None and links[0] == links[1]
    assert first.due is None


def test_a_start_without_room_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(engines: int, *, nodes: bool) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("vivace.supervisor.shared_layers.new_engine_link", full)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ["--model-path", str(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init"]
    config = configure(parse([*words, "--tp-size", "2"], {}))
    assert link_files(config) is None
    several = ["--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"]
    with pytest.raises(CannotStart, match="ulimit"):
        link_files(configure(parse([*words, *several], {})))


def test_every_life_has_new_files() -> None:
    found = LinkFiles(3)
    before, first = descriptors(), found.link()
    assert found.link() is first and len(first.bells) == 3 and first.nodes is None
    found.drop()
    assert descriptors() == before - len(list(first.descriptors()))
    assert found.link() is not first
    assert descriptors() == before
    found.drop()
