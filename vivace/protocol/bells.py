"""What engines that share layers ring each other with (engine/lockstep.py)."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable

import msgspec


class Bells(msgspec.Struct, frozen=True, array_like=True):
    """Descriptors (eventfd) of one engine."""

    awaited: int
    """another one waits for this engine"""
    arrived: int
    """one that this engine waits for has come"""


def new_bells(keep: Callable[[int], int] = lambda number: number) -> Bells:
    """`keep` gets each that is made, and gives it back. Raises OSError."""
    return Bells(*(keep(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)) for _ in range(2)))


def hear_bell(bell: int, seconds: float | None = None) -> None:
    """Wait until it has rung, or so long; then it is silent."""
    waiting = select.poll()  # select(2) knows no descriptor above 1023
    waiting.register(bell, select.POLLIN)
    waiting.poll(None if seconds is None else 1000 * seconds)
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(bell)
