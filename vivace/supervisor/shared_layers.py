"""What engines that share layers inherit beside their own: they live and die together."""

from __future__ import annotations

import os

from vivace.protocol.bells import new_bells
from vivace.protocol.engine_link import EngineLink, new_file, new_nodes_link


class LinkFiles:
    """Files without names, bells and sockets, new for every life of the engines. `nodes`: whether
    some of their ranks are on other machines."""

    def __init__(self, engines: int, *, nodes: bool = False) -> None:
        self._engines = engines
        self._nodes = nodes
        self._link: EngineLink | None = None
        self.renew()

    def renew(self) -> None:
        """Nobody has the old ones any more. Raises OSError."""
        for number in self._link.descriptors() if self._link is not None else ():
            os.close(number)
        self._link = None
        self._link = EngineLink(
            memory=new_file(),
            meeting=new_file(),
            steps=new_file(),
            bells=[new_bells() for _ in range(self._engines)],
            nodes=new_nodes_link(self._engines) if self._nodes else None,
        )

    def link(self) -> EngineLink:
        if self._link is None:
            raise RuntimeError("there was no memory for what engines share")
        return self._link
