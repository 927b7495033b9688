"""Descriptors: of memory for ranks in one process, and waiting for some, however high their numbers
are (select(2) knows those below 1,024)."""

from __future__ import annotations

import os
import select
import weakref

from vivace.platforms.rendezvous import RankMemory
from vivace.system_calls import open_memory, open_process


def is_readable(descriptor: int, seconds: float) -> bool:
    """Within so many seconds there is something to read, or the other end is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def opens_processes() -> bool:
    """Not before Linux 5.3, nor where a sandbox refuses it."""
    try:
        os.close(open_process(os.getpid()))
    except OSError:
        return False
    return True


def rank_memories(count: int) -> list[RankMemory]:
    """Of so many ranks of one machine. The file is closed when nobody has any of them any more."""
    file = open_memory("ranks")
    memories: list[RankMemory] = []
    for _ in range(count):
        own = os.dup(file)
        memories.append(RankMemory(own))
        weakref.finalize(memories[-1], os.close, own)
    os.close(file)
    return memories
