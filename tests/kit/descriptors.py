"""Waiting for descriptors, however high their numbers are: select(2) knows those below 1,024."""

from __future__ import annotations

import select


def is_readable(descriptor: int, seconds: float) -> bool:
    """Within so many seconds there is something to read, or the other end is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
