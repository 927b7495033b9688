"""What supervisor and children say to each other, over one socket pair per child."""

from __future__ import annotations

import msgspec

from vivace.observability.timeline import Stage
from vivace.protocol.engine_link import EngineLink
from vivace.protocol.messages import Command, Draining, EngineDown, Ready, Reply
from vivace.protocol.ranks import NodePresence, RankStates


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message to a child: everything it needs to know."""

    config: bytes
    """`config.encode`"""
    engines: list[int]
    """file descriptors of the engines' sockets: to connect by; of this engine: to listen on"""
    index: int = 0
    """of this frontend, never used again after it died; or of this engine, which its successor
    gets too"""
    epoch: int = 0
    """of this engine"""
    listener: int = -1
    """file descriptor of the listening socket"""
    memory: int
    """file descriptor of the shared memory (protocol/shared_memory.py)"""
    count: int = 1
    """of engines"""
    share: int = 0
    """bytes of memory that each worker of this engine had to size with in its first life: what is
    free now is less where other engines live on; 0: this is the first"""
    place: int = 0
    """of this frontend in the shared memory; its successor gets it too"""
    responses: int = -1
    """file descriptor of the socket where frontends meet the one that keeps responses: the first
    place listens, the others connect by it; -1: there is one frontend"""
    link: EngineLink | None = None
    """of an engine that shares layers with all others"""

    @property
    def again(self) -> bool:
        """This engine follows one that has died: the first lives have the first epochs."""
        return self.epoch >= self.count

    def descriptors(self) -> list[int]:
        """Those that the child inherits."""
        numbers = (*self.engines, self.listener, self.memory, self.responses)
        own = [number for number in numbers if number >= 0]
        return own if self.link is None else [*own, *self.link.descriptors()]


class WarmUp(msgspec.Struct, frozen=True, tag="warm_up"):
    """Supervisor -> one frontend: generate a little, then answer `Warm`."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Supervisor -> frontends: the log has said that the server is ready; now probes may."""


class LiveRequests(msgspec.Struct, frozen=True, tag="live_requests"):
    """Frontend -> supervisor, after `Draining` and at every change: so many requests of it are
    live, in any engine. No more come."""

    count: int


class FrontendGone(msgspec.Struct, frozen=True, tag="frontend_gone"):
    """Supervisor -> engine: this frontend died; nobody wants its answers."""

    index: int


class RaySetup(msgspec.Struct, frozen=True, kw_only=True, tag="ray_setup"):
    """The first message to the process that talks to Ray."""

    devices: list[int]
    """that the ranks of each node take"""
    resource: str
    """what Ray calls them"""
    words: list[str]
    """of `vivace serve`, as this server was started"""
    environment: dict[str, str]
    """for the other nodes; the cluster key among it"""
    directory: str
    """that names of files are relative to"""
    dist_init_addr: str | None
    """None: a free port of this machine, at the address that Ray knows it by"""


class RayReservation(msgspec.Struct, frozen=True, tag="ray_reservation"):
    """The answer: the devices of all nodes are this server's."""

    dist_init_addr: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Supervisor -> child: end now, within `grace` seconds."""

    grace: float
    cause: str = ""
    """to an engine: what the server ends of; empty: somebody has stopped it"""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Engine -> supervisor, while it starts; `fraction` is 0..1 of this stage."""

    stage: str
    fraction: float


class StartupStages(msgspec.Struct, frozen=True, tag="timed"):
    """Child -> supervisor, before it is ready: what it did while it started."""

    stages: list[Stage]


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """Frontend -> supervisor: it accepts connections. `tools`: of each tool server what it has, in
    words."""

    tools: list[str] = []


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """Frontend -> supervisor: the warm-up is over; `problem` is empty when it went well."""

    problem: str
    seconds: float
    exit_code: int = 1
    """of the server, when there is a problem"""


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Child -> supervisor: the exception that is about to end it; `passing`: another start may
    do."""

    text: str
    passing: bool = False


class AskNodes(msgspec.Struct, frozen=True, tag="ask_nodes"):
    """Supervisor -> engine: how do its ranks on other nodes stand? Of each node that answers comes
    `RankStates`, within a second."""


ToChild = (
    Setup
    | Ready
    | EngineDown
    | Command
    | WarmUp
    | Started
    | Draining
    | FrontendGone
    | Stop
    | RaySetup
    | AskNodes
)
FromChild = (
    Progress
    | StartupStages
    | Ready
    | Reply
    | Serving
    | Warm
    | LiveRequests
    | Failure
    | RayReservation
    | NodePresence
    | RankStates
)
