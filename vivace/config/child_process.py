"""What the processes that we start are told: their command and their environment."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path

from vivace.config.process_environment import KEYS_OF_THE_SERVER
from vivace.errors import CannotStart

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Terminals and systemd send them to every process of the group; only the first one decides."""
CLOSE_RANGE, CLOSE_RANGE_CLOEXEC = 436, 4
"""close_range(2), from Linux 5.11 on: the number is the same for all processors"""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
SOURCES = Path(__file__).resolve().parents[2]


def child_environment() -> dict[str, str]:
    """The environment of a server's processes: ours, and what libraries read in it.

    THP_MEM_ALLOC_ENABLE lets torch ask for huge pages where the kernel gives them on request only:
    weights are read once per token, and with small pages the misses of address translation cost
    more than the reading. TOKENIZERS_PARALLELISM off: a frontend tokenizes each text in a thread of
    its own choice; the library would start one more per core, and panic where the system refuses
    them. Ranks that exchange by gloo (without our kernels) listen on this machine only: it trusts
    whoever connects. Lines of Ray's actors have no colors in our log. Keys reach those who compare
    them with the rest of the configuration.
    """
    kept = {name: value for name, value in os.environ.items() if name not in KEYS_OF_THE_SERVER}
    return {
        "THP_MEM_ALLOC_ENABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_COLOR_PREFIX": "0",
        **kept,
        "GLOO_SOCKET_IFNAME": "lo",
    }


def bare_environment() -> dict[str, str]:
    """What a process needs that is to know nothing: where Python's modules are, and the time."""
    kept = (
        "PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "LD_LIBRARY_PATH",
        "TZ",
        "LANG",
        "LC_ALL",
        "LC_TIME",
    )
    return {name: os.environ[name] for name in kept if name in os.environ}


def environment_of_others() -> dict[str, str]:
    """What a program gets that is not ours: where things are, whose they are, and no keys."""
    kept = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
    return {name: os.environ[name] for name in kept if name in os.environ}


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; also while it is stopped.

    Raises OSError when the kernel does not know this; SystemExit when the parent is dead already.
    """
    failed = control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it died before we asked
    if failed:
        raise OSError(failed, "prctl(PR_SET_PDEATHSIG)")


def begin_other_program() -> Callable[[], None]:
    """What a forked process of ours does before it becomes a program that is not ours: it will die
    with us, signals are to it what they usually are, and it has nothing open but its standard
    streams, of which uvloop leaves it second copies: closing one would close nothing. All that is
    slow is done here."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def begin() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)
        if library.syscall(CLOSE_RANGE, 3, ctypes.c_uint(0xFFFFFFFF), CLOSE_RANGE_CLOEXEC):
            close_one_by_one_at_exec()
        if os.getppid() != parent:
            os._exit(1)  # it died before we asked

    return begin


def close_one_by_one_at_exec() -> None:
    """All but the standard streams, where the system is too old for close_range(2), or a sandbox
    refuses it."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the list's own is closed by now
            if (number := int(entry.name)) > 2:
                os.set_inheritable(number, False)


def adopt_orphans() -> None:
    """From now on this process is the parent of what its children start and leave. Raises OSError
    when the kernel does not know this."""
    if failed := control_process(PR_SET_CHILD_SUBREAPER, 1):
        raise OSError(failed, "prctl(PR_SET_CHILD_SUBREAPER)")


class Adoption:
    """What of `adopt_orphans` a program sees. The kernel has one switch for a process, in which
    several threads may each start an engine: so this is one object, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts = 0
        self._before = 0

    @contextlib.contextmanager
    def as_before(self) -> Generator[None]:
        """Behind the last of those that go on at the same time, this process adopts orphans only
        where it did before the first one: it is a program's."""
        with self._lock:
            if self._starts == 0:
                self._before = adopts_orphans()
            self._starts += 1
        try:
            yield
        finally:
            with self._lock:
                self._starts -= 1
                if self._starts == 0:
                    control_process(PR_SET_CHILD_SUBREAPER, self._before)


def adopts_orphans() -> int:
    """0: it does not"""
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return found.value


def control_process(option: int, value: int) -> int:
    """prctl(2); 0, or an errno"""
    library = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if library.prctl(option, value, 0, 0, 0) != 0 else 0


def no_process(name: str, error: OSError) -> CannotStart:
    """Why a process of ours could not be started: no interpreter there, no room for one more."""
    return CannotStart(
        f"no process can be started for {name}: {sys.executable}: {error.strerror}. Install vivace "
        "again if its interpreter is gone; otherwise lift the limits (`ulimit -u`, `ulimit -v`, "
        "the container's)"
    )


def python_module(module: str) -> list[str]:
    """The command that runs a module of ours with this interpreter.

    -P keeps modules that happen to lie in the working directory out; only when the package itself
    is found that way it has to go. Raises CannotStart in a folder that was removed: torch's
    libraries would end the process there.
    """
    try:
        path = [] if Path.cwd() == SOURCES else ["-P"]
    except FileNotFoundError:
        raise CannotStart("the working directory was removed; cd to one that exists") from None
    return [sys.executable, *path, "-m", module]


def leave_signals_to_the_supervisor() -> None:
    """Ctrl-C and systemd signal every process of the group; only the supervisor decides."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # the supervisor held them back
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


@contextlib.contextmanager
def block_signals() -> Generator[None]:
    """What starts in here begins with the stopping signals blocked: until it says what they are to
    it, Ctrl-C, which reaches every process of the terminal, would end it with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe_exit(code: int) -> str:
    """A return code of subprocess in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}"


ADOPTION = Adoption()
"""of this process"""
