"""Who of some processes and their children stands still because somebody has stopped it: a signal
(SIGSTOP), a debugger. Others then wait for it, and it is not they who are stuck."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

STOPPED = "Tt"
"""states of /proc/PID/stat (proc_pid_stat(5)): by a signal, by a debugger"""


def find_stopped(parents: Collection[int]) -> str:
    """`rank 1 (process 123) is stopped`; empty: nobody is."""
    found = [
        f"{name} (process {pid}) is stopped"
        for pid, name, state, parent in list_processes()
        if state in STOPPED and (pid in parents or parent in parents)
    ]
    return ", ".join(found)


def list_processes() -> list[tuple[int, str, str, int]]:
    """(number, name, state, parent), of all that can be seen."""
    found: list[tuple[int, str, str, int]] = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = file.read_text(errors="replace").rpartition(")")
            number, _, name = head.partition(" (")
            state, parent = rest.split()[:2]
            found.append((int(number), name, state, int(parent)))
        except (OSError, ValueError):
            continue  # it has just ended
    return sorted(found)


def name_process(name: str) -> None:
    """What lists of processes call this one; at most 15 letters are kept."""
    try:
        Path("/proc/self/comm").write_text(name)
    except OSError:
        return  # a name is no reason to stop
