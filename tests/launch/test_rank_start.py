"""What must be so before the processes of ranks are started."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from vivace.config.child_process import child_environment
from vivace.errors import CannotStart
from vivace.platforms.groups import require_loopback


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
