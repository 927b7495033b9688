"""What engines that share layers ring each other with (engine/lockstep.py)."""

from __future__ import annotations

import os
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
