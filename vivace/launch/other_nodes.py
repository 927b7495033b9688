"""The other nodes of an engine, of which there may be none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vivace.checkpoint.weights import ReportProgress
    from vivace.config.config import Config
    from vivace.launch.engine_place import EnginePlace
    from vivace.launch.node_link import RemoteRank, Tell
    from vivace.launch.node_messages import Address
    from vivace.platforms.rendezvous import RankMemory
    from vivace.protocol.ranks import NodeSocketSetup
    from vivace.protocol.step import StepPlan
    from vivace.protocol.workers import WorkerCommand


class OtherNodes(Protocol):
    """Those of an engine's ranks that are on other machines; a `Broadcast` to them."""

    def ranks_here(self, ranks: Sequence[int]) -> Sequence[int]: ...

    def sockets(self, rank: int) -> NodeSocketSetup | None:
        """What a rank of this machine needs to reach others."""
        ...

    def gather(self, report: ReportProgress) -> Sequence[RemoteRank]:
        """Wait for all nodes; what ranks of this engine they have. Raises CannotStart, which names
        those that did not come."""
        ...

    def meet(self, found: Mapping[int, Address], look: Callable[[], None]) -> Sequence[Address]:
        """Where this engine's ranks expect those of other nodes -> where all ranks do. `look`: as
        in `AddressBook.read`."""
        ...

    def serve(self, memory: RankMemory) -> None:
        """All ranks are ready. `memory`: of those here, which says when they do not wait."""
        ...

    def send(self, message: StepPlan | WorkerCommand) -> None: ...

    def ask(self) -> None:
        """How these ranks stand; `tell` hears it."""
        ...

    def gone(self) -> str:
        """Which of the nodes that had joined do not answer any more, and why; empty: all do."""
        ...

    def close(self, cause: str = "") -> None: ...


class OneMachine:
    """There are no other nodes."""

    def ranks_here(self, ranks: Sequence[int]) -> Sequence[int]:
        return ranks

    def sockets(self, rank: int) -> None:
        return None

    def gather(self, report: ReportProgress) -> Sequence[RemoteRank]:
        return ()

    def meet(self, found: Mapping[int, Address], look: Callable[[], None]) -> Sequence[Address]:
        return ()

    def serve(self, memory: RankMemory) -> None: ...

    def send(self, message: StepPlan | WorkerCommand) -> None: ...

    def ask(self) -> None: ...

    def gone(self) -> str:
        return ""

    def close(self, cause: str = "") -> None: ...


ONE_MACHINE = OneMachine()


def other_nodes(
    config: Config, place: EnginePlace | None = None, tell: Tell = lambda news: None
) -> OtherNodes:
    """They may join from now on. `place`: of an engine among those that share layers. Raises
    CannotStart where nobody can listen at --dist-init-addr."""
    if config.parallel.nnodes == 1:
        return ONE_MACHINE
    from vivace.launch.nodes import NodeGate, open_door
    from vivace.protocol.engine_link import new_nodes_link

    index, link = (place.index, place.link.nodes) if place is not None else (0, None)
    return NodeGate(config, index, link or new_nodes_link(1), lambda: open_door(config), tell)
