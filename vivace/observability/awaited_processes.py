"""Whom engines and their ranks wait for: who stands still because somebody has stopped it (SIGSTOP,
a debugger), or does not come where the others are. It is not they who are stuck."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from vivace.protocol.futex import NUMBERS
from vivace.protocol.ranks import RankStates

STOPPED = "Tt"
"""states of /proc/PID/stat (proc_pid_stat(5)): by a signal, by a debugger"""
SHARED = "memfd:vivace-ranks"
"""what ranks and their engine map, to exchange and to hear plans (`file_of_ranks`)"""
WAITS = {
    "x86_64": frozenset({7, 23, 45, 47, 232, 270, 271, 281}),
    "aarch64": frozenset({22, 72, 73, 207, 212}),
}
"""numbers of poll, select and epoll_wait and of what came after them, of recvfrom and recvmsg"""
ENDED = "ZX"
"""states of processes that nobody has waited for yet"""
LOOKS, LOOK_SECONDS = 5, 0.01
"""who waits wakes up now and then, to see whether it still has to"""


def find_members(parents: Collection[int], children: str = "rank") -> dict[int, str]:
    """Some engines and their ranks, number -> `rank 1 (process 123)`. `children`: how the names of
    their children begin; one that is to become a rank has no name yet."""
    return {
        pid: f"{name} (process {pid})"
        for pid, name, state, parent in list_processes()
        if pid in parents
        or (parent in parents and name.startswith(children) and state not in ENDED)
    }


def find_stopped(members: Mapping[int, str]) -> list[str]:
    return [name for pid, name in members.items() if is_stopped(pid)]


def look_at(members: Mapping[int, str]) -> RankStates:
    """How these processes (number -> name) stand. Takes LOOKS times LOOK_SECONDS."""
    stopped = find_stopped(members)
    waiting: set[int] = set()
    try:
        for _ in range(LOOKS):
            waiting.update(pid for pid in members if waits_for_others(pid))
            time.sleep(LOOK_SECONDS)
    except (OSError, ValueError):  # it has just ended, or the system does not tell
        return RankStates(stopped, [], waits=False)
    missing = [name for pid, name in members.items() if pid not in waiting and name not in stopped]
    return RankStates(stopped, missing, waits=bool(waiting))


def describe_awaited(found: Sequence[RankStates]) -> str:
    """`rank 1 (process 123) is stopped`, or `rank 1 (process 123) does not come where others wait`:
    it computes, or hangs. Empty: nobody is awaited, or nobody can see it."""
    if stopped := [name for one in found for name in one.stopped]:
        return describe_stopped(stopped)
    missing = [name for one in found for name in one.missing]
    if missing and any(one.waits for one in found):
        return f"{', '.join(missing)} does not come where others wait"
    return ""


def describe_stopped(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} stopped"


def waits_for_others(pid: int) -> bool:
    """In a collective or for a plan (a futex(2) of shared memory), or for a message
    (proc_pid_syscall(5)). Raises OSError, ValueError where that cannot be seen."""
    machine, process = platform.machine(), Path(f"/proc/{pid}")
    shared = [line for line in (process / "maps").read_text().splitlines() if SHARED in line]
    bounds = [[int(edge, 16) for edge in line.split()[0].split("-")] for line in shared]
    for task in (process / "task").iterdir():
        call, *operands = (task / "syscall").read_text().split()
        if call == "running":
            continue
        if int(call) in WAITS.get(machine, ()) and int(task.name) == pid:
            return True
        if int(call) == NUMBERS.get(machine):
            address = int(operands[0], 16)
            if any(first <= address < last for first, last in bounds):
                return True
    return False


def is_stopped(pid: int) -> bool:
    """False also of one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in STOPPED


def find_parent(pid: int) -> int:
    """0: there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


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
