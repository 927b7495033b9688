"""What a supervisor is to run, and whom it tells about the start."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.observability.timeline import Stage
from vivace.protocol.listening_socket import ListeningSocket
from vivace.protocol.messages import Capacity
from vivace.protocol.shared_memory import SharedMemory
from vivace.supervisor.child import Advice, Child, Command, Role, process_command, spawn
from vivace.supervisor.joined_nodes import Farewell
from vivace.supervisor.messages import Setup
from vivace.supervisor.shared_layers import LinkFiles

log = logging.getLogger(__name__)

SPAWN_RETRY_SECONDS = 1.0
WARMING_UP = "Warming up"
"""the supervisor's own stage of a start; the others are the engine's"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run. Times are seconds."""

    config: bytes
    frontends: int
    listener: socket.socket
    engines: Sequence[ListeningSocket]
    memory: SharedMemory
    """with a place for each frontend"""
    warm_up: bool
    watchdog: float | None
    soft_watchdog: float | None
    drain: float = 60.0
    crashes: int = 3
    """deaths of engines that are forgiven without being explained, and deaths of frontends that are
    made good at once, within the window"""
    crash_window: float = 600.0
    command: Command = process_command
    memory_advice: Advice = lambda lack: ""
    changed_files: Callable[[], str] = lambda: ""
    """why nothing may be started again that reads the model's files; empty: it may"""
    tick: float = 0.5
    responses: ListeningSocket | None = None
    """of the first place, for the frontends in the others; None: there is one place"""
    link: LinkFiles | None = None
    """where engines share layers, so that all end when one does"""
    piped: bool = False
    """whether what children print comes to us (`Hooks.write`)"""

    def spawn(self, role: Role, setup: Setup) -> Child | None:
        """Start a child; None when none can be started now, to be tried again a while later."""
        try:
            return spawn(role, self.command, *setup.descriptors(), piped=self.piped)
        except OSError as error:
            tell_retry(role, error)
            return None

    def start_engine(
        self, child: Child | None, index: int, epoch: int, share: int
    ) -> tuple[Child, Setup] | None:
        """Spawn one (or take `child`). None as for `spawn`, also where what engines share cannot be
        opened now."""
        try:
            setup = self.engine_setup(index, epoch, share)
        except OSError as error:
            tell_retry("engine", error)
            return None
        child = child or self.spawn("engine", setup)
        return None if child is None else (child, setup)

    def engine_setup(self, index: int, epoch: int, share: int) -> Setup:
        """Raises OSError."""
        return Setup(
            share=share,
            config=self.config,
            engines=[self.engines[index].listening],
            index=index,
            epoch=epoch,
            memory=self.memory.descriptor,
            count=len(self.engines),
            link=None if self.link is None else self.link.link(),
        )

    def frontend_setup(self, index: int, place: int) -> Setup:
        return Setup(
            config=self.config,
            engines=[engine.file for engine in self.engines],
            index=index,
            listener=self.listener.fileno(),
            memory=self.memory.descriptor,
            place=place,
            count=len(self.engines),
            responses=self._responses_at(place),
        )

    def _responses_at(self, place: int) -> int:
        if self.responses is None:
            return -1
        return self.responses.listening if place == 0 else self.responses.file


def tell_retry(role: Role, error: OSError) -> None:
    seconds = f"{SPAWN_RETRY_SECONDS:g} s"
    log.error("no %s can be started: %s; trying again in %s", role, error.strerror, seconds)


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the user sees: the progress of a start, that it is complete and then what runs, whole
    lines that children print, what a child did while it started, and how nodes hear that there is
    no server any more. `show` gets what each tool server has, too."""

    progress: Callable[[str, float], None]
    ready: Callable[[], None]
    show: Callable[[Capacity, Sequence[str]], None]
    write: Callable[[str], object] = lambda text: None
    timed: Callable[[str, list[Stage]], None] = lambda process, stages: None
    farewell: Farewell = lambda nodes, cause, code: None
