"""Takes words out of what the list of processes (`ps`, /proc/PID/cmdline) shows of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

ARG_START, ARG_END, ENV_START, ENV_END = 47, 48, 49, 50
"""fields of /proc/self/stat, counted from 0 (proc_pid_stat(5))"""
SOME_LENGTH = 8
"""bytes"""


def hide(secrets: Iterable[str]) -> bool:
    """Put stars in their place, in the kernel's view of arguments and environment.

    That view is memory of this process; the words keep their length, so nothing else moves. False
    when an argument still shows one.
    """
    words = [secret.encode("utf-8", "surrogateescape") for secret in secrets if secret]
    if not words:
        return True
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        places = [int(fields[index - 2]) for index in (ARG_START, ARG_END, ENV_START, ENV_END)]
        for start, end in (places[:2], places[2:]):
            blank(start, end, words)
        shown = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):
        return False
    return not any(shows(argument, word) for argument in shown for word in words)


def blank(start: int, end: int, words: list[bytes]) -> None:
    """Between two addresses: whole arguments, and what follows a `=` up to the end of one."""
    if not 0 < start < end:
        return
    place = start
    for argument in ctypes.string_at(start, end - start).split(b"\0"):
        size = max((len(word) for word in words if is_value(argument, word)), default=0)
        ctypes.memset(place + len(argument) - size, ord("*"), size)
        place += len(argument) + 1


def is_value(argument: bytes, word: bytes) -> bool:
    """A word may have a `=` itself: keys in base64 end with them."""
    return argument == word or argument.endswith(b"=" + word)


def shows(argument: bytes, word: bytes) -> bool:
    """Wherever a key of some length stands; a short one may be part of any other word."""
    return is_value(argument, word) or (len(word) >= SOME_LENGTH and word in argument)
