"""From a command line to a running server.

This process only decides, starts and watches; it loads neither torch nor a tokenizer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.config.child_process import no_process
from vivace.errors import FAILED, CannotStart, cause, exit_code, one_line_without_room
from vivace.launch.configure import configure
from vivace.launch.listen import PortInUse, allow_open_files, bind, local_url
from vivace.launch.prefetch import read_ahead
from vivace.launch.screen import StartScreen, is_terminal, make_screen
from vivace.launch.startup_profile import SUPERVISOR, StartupProfile
from vivace.launch.summary import build_summary
from vivace.observability import log as log_lines
from vivace.observability.log import protect_standard_streams
from vivace.observability.timeline import Timeline, boot_clock, process_start
from vivace.protocol.listening_socket import listen, new_socket
from vivace.protocol.messages import Capacity
from vivace.protocol.shared_memory import SharedMemory, new_descriptor, reserve, size_for
from vivace.supervisor.child import Child, process_command, spawn, with_preload
from vivace.supervisor.plan import WARMING_UP
from vivace.terminal import forget_wrong_sizes, open_closed_streams

if TYPE_CHECKING:
    import socket

    from vivace.config.config import Config, Options
    from vivace.supervisor.shared_layers import LinkFiles
    from vivace.supervisor.supervisor import Plan

log = logging.getLogger(__name__)

READY_LINE = "The server is fired up and ready to roll!"


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """What an engine inherits that is spawned ahead; they get their meaning later."""

    memory: int
    """protocol/shared_memory.py"""
    engine: int
    """protocol/listening_socket.py"""


def main(argv: Sequence[str], *, program: str = "vivace serve") -> int:
    """Serve until stopped; returns the exit code. 2 = the command line cannot be obeyed."""
    timeline = Timeline("interpreter, first imports")
    timeline.begin("starting the engine's process")
    open_closed_streams()
    forget_wrong_sizes(os.environ)
    return exit_code(program, lambda: run(argv, program, timeline), cannot=(CannotStart,))


def run(argv: Sequence[str], program: str, timeline: Timeline) -> int:
    shared = open_descriptors()
    engine = spawn_engine(argv, shared)
    try:
        return serve(argv, engine, shared, program, timeline)
    finally:
        if engine is not None:
            end(engine)


def open_descriptors() -> Descriptors:
    """Raises CannotStart."""
    try:
        return Descriptors(memory=new_descriptor(), engine=new_socket())
    except OSError as error:
        reason = f"no memory or sockets that processes share can be opened: {cause(error)}"
        raise CannotStart(reason) from error


def spawn_engine(argv: Sequence[str], shared: Descriptors) -> Child | None:
    """Loading PyTorch takes seconds, so the engine's process starts with that before anything
    else is known; it is ended when the command line turns out to be wrong."""
    if {"-h", "--help", "--help-all"}.intersection(argv) or os.environ.get("VIVACE_EXECUTOR"):
        return None
    if has_no_engine(argv):
        return None
    try:
        return spawn(
            "engine",
            with_preload(process_command),
            shared.memory,
            shared.engine,
            piped=is_terminal(sys.stderr),
        )
    except OSError as error:
        raise no_process("the engine", error) from error


def has_no_engine(argv: Sequence[str]) -> bool:
    """Whether this is said to be a node behind the first."""
    words = [part for word in argv for part in word.split("=", 1)]
    values = [value for flag, value in pairwise(words) if flag == "--node-rank"]
    return bool(values) and values[-1] != "0"


def end(engine: Child) -> None:
    engine.kill()
    engine.process.wait()


def serve(
    argv: Sequence[str],
    engine: Child | None,
    shared: Descriptors,
    program: str,
    timeline: Timeline,
) -> int:
    timeline.begin("configuration")
    from vivace.config.parallelism import requested_sizes
    from vivace.config.parsing import parse
    from vivace.launch.preflight import check_frontend, check_machine

    options = parse(argv, os.environ, program=program)
    config = configure(with_hidden_keys(options, argv))
    if config.parallel.node_rank:
        from vivace.launch.node import run_node

        if engine is not None:
            end(engine)  # it runs on node 0
        return run_node(config)
    check_frontend(config)
    check_machine(config)
    read_ahead(config.source.files, config.platform.available_bytes)
    if engine is not None and requested_sizes(config).dp_attention:
        end(engine)  # it has not inherited what engines that share layers do
        engine = None
    if not config.parallel.use_ray:
        return launch(config, engine, shared, timeline)
    from vivace.launch.ray_nodes import nodes_of_ray

    timeline.begin("reserving devices in the Ray cluster")
    with nodes_of_ray(config, argv) as (config, ray):
        return launch(config, engine, shared, timeline, ray)


def with_hidden_keys(options: Options, argv: Sequence[str]) -> Options:
    """Take the keys out of what `ps` shows; a notice says that they were there."""
    from vivace.launch.process_list import hide

    given = [key for key in (options.http.api_key, options.http.admin_api_key) if key]
    hidden = hide(key.reveal() for key in given)
    typed = [key for key in given if any(word.endswith(key.reveal()) for word in argv)]
    if not typed:
        return options
    seen = "could be seen in the list of processes (ps) until this start had read it"
    if not hidden:
        seen = "can be seen in the list of processes (ps)"
    notice = f"a key on the command line {seen}; use --api-key-file or VIVACE_API_KEY"
    return replace(options, notices=(*options.notices, notice))


def launch(
    config: Config,
    engine: Child | None,
    shared: Descriptors,
    timeline: Timeline,
    ray: Child | None = None,
) -> int:
    """Run a server until it is stopped; returns its exit code. `engine`: spawned ahead with
    `shared`; `ray`: it watches the other nodes."""
    protect_standard_streams()
    few_files = allow_open_files()
    with contextlib.closing(make_screen(sys.stderr)) as screen:
        log_lines.setup(config.logging.log_level, stream=screen)
        if few_files:
            log.warning("%s", few_files)
        try:
            listener = bind(config.http.host, config.http.port)
        except PortInUse as error:
            log.error("%s", error)
            return FAILED
        with listener:
            return supervise(config, listener, engine, shared, screen, timeline, ray)


def supervise(
    config: Config,
    listener: socket.socket,
    engine: Child | None,
    shared: Descriptors,
    screen: StartScreen,
    timeline: Timeline,
    ray: Child | None,
) -> int:
    from vivace.supervisor.supervisor import Hooks, Supervisor

    url, profile = local_url(listener), StartupProfile()

    def ready() -> None:
        screen.close()
        log.info("Ready %.1f s after the start of this process", boot_clock() - process_start())
        log.info(READY_LINE)

    def show(capacity: Capacity, tools: Sequence[str]) -> None:
        profile.add(SUPERVISOR, timeline.stages())
        write_profile(profile, config, screen)
        screen.show(build_summary(config, capacity, url, tools))

    def progress(stage: str, fraction: float) -> None:
        if stage == WARMING_UP:
            timeline.begin(stage)
        screen.update(stage, fraction)

    def farewell(nodes: Collection[int], cause: str, code: int) -> None:
        from vivace.launch.farewell import ServerEnd, tell_nodes

        tell_nodes(config, nodes, ServerEnd(cause, code))

    hooks = Hooks(
        progress=progress,
        ready=ready,
        show=show,
        write=screen.write,
        timed=profile.add,
        farewell=farewell,
    )
    timeline.begin("waiting for the children")
    return Supervisor(build_plan(config, listener, shared), hooks, engine, ray).run()


def write_profile(profile: StartupProfile, config: Config, screen: StartScreen) -> None:
    if config.logging.startup_profile:
        screen.write("\n".join(profile.table()) + "\n")
    if config.logging.startup_profile_file:
        profile.write(Path(config.logging.startup_profile_file))


def build_plan(config: Config, listener: socket.socket, shared: Descriptors) -> Plan:
    """What the supervisor needs to know of the configuration."""
    from vivace.checkpoint.file_state import ModelFiles
    from vivace.config.serialize import encode
    from vivace.launch.out_of_memory import memory_advice
    from vivace.supervisor.supervisor import Plan

    frontends, engines = max(1, config.model.tokenizer_worker_num), config.parallel.dp_size
    return Plan(
        config=encode(config),
        frontends=frontends,
        listener=listener,
        # The first engine may have been spawned ahead, with its socket.
        engines=[listen(shared.engine), *(listen(new_socket()) for _ in range(1, engines))],
        responses=listen(new_socket()) if frontends > 1 else None,
        memory=shared_memory(shared.memory, frontends, engines),
        warm_up=not config.http.skip_server_warmup,
        watchdog=config.runtime.watchdog_timeout,
        soft_watchdog=config.runtime.soft_watchdog_timeout,
        memory_advice=partial(memory_advice, config),
        changed_files=ModelFiles(config.source).changed,
        link=link_files(config),
        piped=is_terminal(sys.stderr),
    )


def link_files(config: Config) -> LinkFiles | None:
    """What the engines share, where they do. Raises CannotStart."""
    from vivace.config.parallelism import requested_sizes
    from vivace.supervisor.shared_layers import LinkFiles

    if not requested_sizes(config).dp_attention:
        return None
    engines = config.parallel.dp_size
    try:
        return LinkFiles(engines, nodes=config.parallel.nnodes > 1)
    except OSError as error:
        raise CannotStart(
            f"no room for what {engines} engines share: {error.strerror}; raise the limit of open "
            "files (ulimit -n), or lower --dp-size"
        ) from None


def shared_memory(descriptor: int, frontends: int, engines: int) -> SharedMemory:
    counters = f"counters of {frontends} frontends (--tokenizer-worker-num)"
    with one_line_without_room(counters, size_for(frontends, engines)):
        return reserve(descriptor, frontends, engines)
