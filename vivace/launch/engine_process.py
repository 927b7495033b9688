"""The engine process: build, say ready, loop until told to stop."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import threading
from collections.abc import Callable
from typing import Protocol

from vivace.config.serialize import decode
from vivace.engine.executor import with_heartbeat
from vivace.engine.lockstep import SharedLockstep
from vivace.engine.loop import HeartbeatMailbox, Lockstep
from vivace.engine.step_heartbeat import StepHeartbeat
from vivace.launch.engine import engine_parts
from vivace.launch.engine_place import EnginePlace
from vivace.launch.other_nodes import other_nodes
from vivace.observability import log as log_lines
from vivace.observability.awaited_processes import name_process
from vivace.observability.gc_pauses import watch_gc
from vivace.observability.timeline import Timeline
from vivace.protocol.channel import EngineMailbox
from vivace.protocol.heartbeat import EngineHeartbeat
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.messages import Command, Ready, Reply, ToFrontend
from vivace.protocol.shared_memory import attach, words
from vivace.supervisor.messages import (
    AskNodes,
    FrontendGone,
    Progress,
    Setup,
    StartupStages,
    Stop,
    ToChild,
)

log = logging.getLogger(__name__)


class Stoppable(Protocol):
    def stop(self) -> None: ...


class SupervisorThread(threading.Thread):
    """Listens to the supervisor; when the supervisor is gone, so is this process. `ask_nodes`: how
    their ranks stand."""

    def __init__(
        self,
        control: MessageSocket[ToChild],
        mailbox: EngineMailbox,
        ask_nodes: Callable[[], None],
    ) -> None:
        super().__init__(name="supervisor", daemon=True)
        self._control = control
        self._mailbox = mailbox
        self._ask_nodes = ask_nodes
        self._loop: Stoppable | None = None
        self.cause = ""
        """`Stop.cause`"""

    def attach_loop(self, loop: Stoppable) -> None:
        """From now on Stop ends this loop; before, it ends the process."""
        self._loop = loop

    def run(self) -> None:
        try:
            while True:
                self._on_message(self._control.wait())
        except SocketClosed:
            os._exit(1)

    def _on_message(self, message: ToChild) -> None:
        match message:
            case Command():
                self._mailbox.post(message)
            case FrontendGone():
                self._mailbox.frontend_died(message.index)
            case AskNodes():
                self._ask_nodes()
            case Stop():
                if self._loop is None:
                    os._exit(0)
                self.cause = message.cause
                self._loop.stop()
            case _:
                log.error("the engine has no use for %s", type(message).__name__)


def run_engine(control: MessageSocket[ToChild], setup: Setup, timeline: Timeline) -> None:
    """Serve until stopped. Raises what ends the engine."""
    timeline.begin("reading the configuration")
    config = decode(setup.config)
    name = f"engine {setup.index}" if setup.count > 1 else "engine"
    log_lines.setup(config.logging.log_level, name)
    name_process(name)
    watch_gc(config.logging.gc_warning_threshold_secs)
    mailbox = EngineMailbox(
        setup.engines[0],
        epoch=setup.epoch,
        to_supervisor=lambda message: send_reply(control, message),
    )
    place, lockstep = join_engines(setup)
    others = other_nodes(config, place, control.send)
    thread = SupervisorThread(control, mailbox, others.ask)
    thread.start()
    heartbeat = EngineHeartbeat(attach(setup.memory, setup.count).engine(setup.index))
    heartbeat.begin()
    steps = StepHeartbeat(heartbeat)

    def report(stage: str, fraction: float) -> None:
        timeline.begin(stage)
        control.send(Progress(stage, fraction))

    loop, capacity = engine_parts(
        config,
        HeartbeatMailbox(mailbox, heartbeat, steps),
        report,
        epoch=setup.epoch,
        again=setup.again,
        wrap_runner=lambda runner: with_heartbeat(runner, steps),
        report_load=heartbeat.report_load,
        owns_process=True,
        share=setup.share,
        place=place,
        others=others,
        lockstep=lockstep,
    )
    timeline.begin("collecting garbage")
    gc.collect()
    gc.freeze()  # what is loaded stays; the collector need not look at it again
    gc.enable()
    heartbeat.idle()
    thread.attach_loop(loop)
    control.send(StartupStages(timeline.stages()))
    control.send(Ready(epoch=setup.epoch, capacity=capacity, engine=setup.index))
    loop.run()
    loop.close(thread.cause)  # who hears of a rank's end rings the mailbox
    mailbox.close()


def join_engines(setup: Setup) -> tuple[EnginePlace | None, Lockstep | None]:
    """This engine's place among those that share layers with it, where any do."""
    link = setup.link
    if link is None:
        return None, None
    place = EnginePlace(index=setup.index, engines=setup.count, link=link)
    os.posix_fallocate(link.steps, 0, 16 * setup.count)  # by each of them: it never cuts
    steps = words(memoryview(mmap.mmap(link.steps, 16 * setup.count)))
    return place, SharedLockstep(steps, setup.index, link.bells)


def send_reply(control: MessageSocket[ToChild], message: ToFrontend) -> None:
    if isinstance(message, Reply):
        control.send(message)
