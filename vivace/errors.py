"""What is wrong with what was asked, as opposed to what is wrong with Vivace."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator


class CannotStart(ValueError):
    """Settings, a model or a machine that do not go together. The text says what is wrong, where
    and what to do; a traceback would only hide it, so none is shown."""


class NotJoined(CannotStart):
    """Who was awaited has not come in time, and may come when we start again."""


def is_panic(error: BaseException) -> bool:
    """Whether it is a Rust library's own BaseException, which is in no module."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def one_line_without_memory() -> Iterator[None]:
    """What runs out of memory in here raises CannotStart."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise CannotStart(
            f"there is not enough memory ({say(error)}). Free memory, lift the limit (`ulimit -v`, "
            "`-d` or `-u`, the container's) or take a smaller model"
        ) from error


NO_SHARED_ROOM = (
    "and there is no room: free memory, or make /dev/shm larger (docker --shm-size), or where that "
    "cannot be written the folder of TMPDIR"
)
NO_ROOM = {
    errno.EFBIG: "which count as a file: raise `ulimit -f` (prlimit --fsize, systemd's LimitFSIZE)",
    errno.ENOSPC: NO_SHARED_ROOM,
    errno.EDQUOT: NO_SHARED_ROOM,
    errno.ENOMEM: "and no memory: free some, or raise its limit (`ulimit -v`, the container's)",
}


@contextlib.contextmanager
def one_line_without_room(what: str, nbytes: int) -> Iterator[None]:
    """A file without a name, which is memory, gets so many bytes. Raises CannotStart."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise CannotStart(f"{what}: {nbytes:,} shared bytes, {NO_ROOM[error.errno]}") from error


class RankLost(Exception):
    """Another rank will not come or answer any more; the text is which one and why, or that the
    others do not answer. Where it was missed says nothing, so no traceback is shown."""


class NodeGone(RankLost):
    """A whole node has gone while its ranks started, and may come back: another start may go well.
    The text is which one and why."""


NO_MEMORY = (
    "MemoryError",
    "Cannot allocate memory",  # the system, torch
    "can't allocate memory",
    "can't start new thread",  # no room for its stack
    "std::bad_alloc",
)
"""what exceptions of Python, torch and the system say"""
NO_MEMORY_FOR_A_LIBRARY = "failed to map segment from shared object"
"""what the loader says; another reason would follow"""


def is_out_of_memory(error: BaseException) -> bool:
    return not isinstance(error, CannotStart) and says_no_memory(say(error))


def says_no_memory(text: str) -> bool:
    return any(sign in text for sign in NO_MEMORY) or text.endswith(NO_MEMORY_FOR_A_LIBRARY)


def say(error: BaseException) -> str:
    """Kind and first line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")


CANNOT_START = 2
"""exit code of a command that cannot be obeyed, as argparse has it"""
FAILED = 1
"""exit code of a command that was obeyed and failed"""

Kinds = tuple[type[Exception], ...]


def exit_code(
    program: str,
    work: Callable[[], int],
    *,
    cannot: Kinds = (CannotStart, OSError),
    failed: Kinds = (),
) -> int:
    """That of `work`. What of `cannot` is raised is one line on stderr and CANNOT_START, what of
    `failed` a line and FAILED. Everything else is a fault of ours and stays a traceback."""
    from vivace.terminal import print_wrapped, shown

    try:
        return work()
    except (*cannot, *failed) as error:
        if is_of_output(error):
            raise
        reason = "; ".join(line.strip() for line in cause(error).splitlines())
        print_wrapped(f"{program}: {shown(reason)}")
        return FAILED if isinstance(error, (*failed, NotJoined)) else CANNOT_START


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""a file that standard output goes to cannot take more"""


def is_of_output(error: Exception) -> bool:
    """Standard output goes to who has left or what is full: `vivace.cli.main` says so, once."""
    return (
        isinstance(error, OSError)
        and error.filename is None
        and error.errno in (*FULL, errno.EPIPE)
    )


def cause(error: Exception) -> str:
    """What to tell of it: of an OSError the file and the reason, without Python's number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def why_no_answer(error: Exception) -> str:
    """Of a connection: the system's words, without what a library says around them."""
    inner = getattr(error, "os_error", None) or getattr(error, "reason", None) or error
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    if not isinstance(inner, OSError) or type(inner).__module__ == "ssl":
        return str(inner) or type(error).__name__
    known = inner.errno is not None and inner.errno > 0  # names that are not found have others
    return os.strerror(inner.errno) if known and inner.errno else inner.strerror or str(inner)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """ "; did you mean ..." with up to three names, or nothing; 1 is the same name."""
    # Loading it takes longer than all rules take, and a valid deployment never asks.
    import difflib

    known = list(dict.fromkeys(known))
    same = [each for each in known if each.casefold() == name.casefold()]
    close = same or difflib.get_close_matches(name, known, n=3, cutoff=cutoff)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class StepRefused(ValueError):
    """A worker did not begin a step, because of what the plan says: it would be refused wherever it
    ran."""
