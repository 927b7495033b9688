"""The engine process: build, say ready, loop until told to stop."""

from __future__ import annotations

import gc
import logging
import os
import threading
from typing import Protocol

from vivace.config.serialize import decode
from vivace.engine.solo_steps import SoloSteps
from vivace.launch.engine import engine_parts
from vivace.observability import log as log_lines
from vivace.observability.gc_pauses import watch_gc
from vivace.observability.timeline import Timeline
from vivace.protocol.channel import EngineMailbox, ToFrontend
from vivace.protocol.control import Command, Ready, Reply
from vivace.protocol.heartbeat import EngineHeartbeat
from vivace.protocol.shared_memory import attach
from vivace.supervisor.heartbeat import HeartbeatMailbox, HeartbeatRunner
from vivace.supervisor.ipc import MessageSocket, SocketClosed
from vivace.supervisor.messages import FrontendGone, Progress, Setup, Stop, Timed, ToChild

log = logging.getLogger(__name__)


class Stoppable(Protocol):
    def stop(self) -> None: ...


class SupervisorThread(threading.Thread):
    """Listens to the supervisor; when the supervisor is gone, so is this process."""

    def __init__(self, line: MessageSocket[ToChild], mailbox: EngineMailbox) -> None:
        super().__init__(name="supervisor line", daemon=True)
        self._line = line
        self._mailbox = mailbox
        self._loop: Stoppable | None = None

    def drive(self, loop: Stoppable) -> None:
        """From now on Stop ends this loop; before, it ends the process."""
        self._loop = loop

    def run(self) -> None:
        try:
            while True:
                self._obey(self._line.wait())
        except SocketClosed:
            os._exit(1)

    def _obey(self, message: ToChild) -> None:
        match message:
            case Command():
                self._mailbox.post(message)
            case FrontendGone():
                self._mailbox.frontend_died(message.index)
            case Stop():
                if self._loop is None:
                    os._exit(0)
                self._loop.stop()
            case _:
                log.error("the engine has no use for %s", type(message).__name__)


def run_engine(line: MessageSocket[ToChild], setup: Setup, timeline: Timeline) -> None:
    """Serve until stopped. Raises what ends the engine."""
    timeline.begin("reading the configuration")
    config = decode(setup.config)
    log_lines.setup(config.logging.log_level, "engine")
    watch_gc(config.logging.gc_warning_threshold_secs)
    mailbox = EngineMailbox(
        setup.engine,
        epoch=setup.epoch,
        to_supervisor=lambda message: answer(line, message),
    )
    thread = SupervisorThread(line, mailbox)
    thread.start()
    pulse = EngineHeartbeat(attach(setup.memory).engine)
    pulse.begin()

    def report(stage: str, fraction: float) -> None:
        timeline.begin(stage)
        line.send(Progress(stage, fraction))

    loop, capacity = engine_parts(
        config,
        HeartbeatMailbox(mailbox, pulse),
        report,
        epoch=setup.epoch,
        watched=lambda runner: SoloSteps(HeartbeatRunner(runner, pulse)),
    )
    timeline.begin("collecting garbage")
    gc.collect()
    gc.freeze()  # what is loaded stays; the collector need not look at it again
    gc.enable()
    pulse.rest()
    thread.drive(loop)
    line.send(Timed(timeline.stages()))
    line.send(Ready(epoch=setup.epoch, capacity=capacity))
    loop.run()
    mailbox.close()


def answer(line: MessageSocket[ToChild], message: ToFrontend) -> None:
    if isinstance(message, Reply):
        line.send(message)
