"""Entry of the children: `python -m vivace.launch.child engine|frontend|rank --control FD --parent
PID`. With several FDs it becomes so many ranks.

The supervisor starts this, and engines their ranks. The child dies with its parent, whatever
happens: the kernel sends SIGKILL when that dies, and the end of the control socket to the parent is
watched as well.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from vivace.config.child_process import die_with, leave_signals_to_the_supervisor
from vivace.config.time_slices import ask_for_short_slices
from vivace.errors import (
    CANNOT_START,
    CannotStart,
    NodeGone,
    NotJoined,
    RankLost,
    is_out_of_memory,
)
from vivace.launch.prefetch import load_torch_library
from vivace.observability import log as log_lines
from vivace.observability.awaited_processes import name_process
from vivace.observability.log import protect_standard_streams
from vivace.observability.timeline import Timeline
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import RankFailure
from vivace.supervisor.ipc import child_end
from vivace.supervisor.messages import Failure, Progress, Setup, ToChild

LONGEST_FAILURE = 2000

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    timeline = Timeline("interpreter, first imports")
    parser = argparse.ArgumentParser(prog="vivace.launch.child", description=__doc__)
    parser.add_argument("role", choices=("engine", "frontend", "rank", "ray"))
    parser.add_argument("--control", type=int, required=True, nargs="+")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--preload", action="store_true", help="import before the setup comes")
    arguments = parser.parse_args(argv)
    protect_standard_streams()
    try:
        die_with(arguments.parent)
    except OSError as error:
        log.warning("%s", error)
    leave_signals_to_the_supervisor()
    if arguments.role in ("engine", "frontend"):  # ranks may outnumber cores
        ask_for_short_slices()
    gc.disable()  # nothing that is imported and loaded is garbage; the roles enable it when ready
    log_lines.setup("info", arguments.role)
    sockets = [control_socket(number) for number in arguments.control]
    control = child_end(sockets[0])
    try:
        if arguments.role == "rank":
            become_rank(sockets, arguments.parent)
            control = child_end(sockets[0])
        if arguments.preload:
            preload(arguments.role, control, timeline)
        run(arguments.role, control, sockets[0], timeline)
    except SocketClosed:
        return 1
    except BaseException as error:
        if arguments.role == "rank":
            for sock in sockets:  # of this rank, or of all that are not there
                child_end(sock).send(failure_of_rank(error))
            return CANNOT_START if isinstance(error, CannotStart) else 1
        passing = isinstance(error, NotJoined | NodeGone)
        control.send(Failure(describe(error), passing))
        if isinstance(error, CannotStart):
            return CANNOT_START  # the supervisor says why, in one line
        if is_out_of_memory(error):
            return 1  # and what would help
        log.critical(
            "the %s ends: %s",
            arguments.role,
            describe(error),
            exc_info=None if is_of_ranks(error) else error,
        )
        return 1
    return 0


def control_socket(number: int) -> socket.socket:
    sock = socket.socket(fileno=number)
    sock.set_inheritable(False)  # the control socket must close when this process dies, not later
    return sock


def become_rank(sockets: list[socket.socket], engine: int) -> None:
    """Import what ranks need, then be one of them, whose socket is left."""
    from vivace.launch.rank_process import fork_ranks

    name_process("ranks")
    load_torch_library()
    import_module("vivace.worker.build")
    fork_ranks(sockets, engine)


def run(
    role: str, control: MessageSocket[ToChild], sock: socket.socket, timeline: Timeline
) -> None:
    """`sock` is what `control` reads; a rank hears other messages there."""
    timeline.begin("imports")
    if role == "engine":
        from vivace.launch.engine_process import run_engine

        run_engine(control, first_message(control, timeline), timeline)
        return
    if role == "rank":
        from vivace.launch.rank_process import rank_end, run_rank

        run_rank(rank_end(sock))
        return
    if role == "ray":
        from vivace.launch.ray_process import run_ray

        run_ray(control)
        return
    import uvloop

    from vivace.launch.frontend_process import run_frontend

    uvloop.run(run_frontend(control, first_message(control, timeline), timeline))


def preload(role: str, control: MessageSocket[ToChild], timeline: Timeline) -> None:
    """Import the slow parts now; the setup waits in the control socket meanwhile."""
    if role == "engine":
        control.send(Progress("Loading PyTorch", 0.0))
        load_torch_library()
        timeline.begin("imports")
        import_module("vivace.launch.engine_process")
        timeline.begin("import torch")
        import_module("torch")
        timeline.begin("import the worker")
        import_module("vivace.worker.build")


def first_message(control: MessageSocket[ToChild], timeline: Timeline) -> Setup:
    """The setup; what the supervisor has sent behind it stays in the socket."""
    gc.freeze()  # what is imported stays: the collection before serving is spared most of its work
    timeline.begin("waiting for the configuration")
    setup = control.wait()
    if not isinstance(setup, Setup):
        raise TypeError(f"the first message is {type(setup).__name__}, not Setup")
    return setup


def describe(error: BaseException) -> str:
    text = str(error) if isinstance(error, CannotStart) else f"{type(error).__name__}: {error}"
    return text[:LONGEST_FAILURE]


def failure_of_rank(error: BaseException) -> RankFailure:
    """The engine says it: many ranks fail over one thing."""
    noticed = is_of_ranks(error)
    told = noticed or isinstance(error, CannotStart) or is_out_of_memory(error)
    trace = "" if told else "".join(traceback.format_exception(error))
    return RankFailure(
        describe(error),
        noticed=noticed,
        refused=isinstance(error, CannotStart),
        trace=trace[-LONGEST_FAILURE:],
    )


def is_of_ranks(error: BaseException) -> bool:
    return isinstance(error, RankLost) or isinstance(error.__cause__, RankLost)


def end(code: int) -> NoReturn:
    """Leave without tearing down the interpreter: nothing is left to save."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
