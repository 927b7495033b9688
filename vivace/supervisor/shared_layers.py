"""What engines that share layers inherit beside their own: they live and die together."""

from __future__ import annotations

import os

from vivace.protocol.engine_link import EngineLink, new_engine_link


class LinkFiles:
    """Files without names, bells and sockets, new for every life of the engines. `nodes`: whether
    some of their ranks are on other machines."""

    def __init__(self, engines: int, *, nodes: bool = False) -> None:
        """Raises OSError."""
        self._engines = engines
        self._nodes = nodes
        self._link: EngineLink | None = new_engine_link(engines, nodes=nodes)

    def drop(self) -> None:
        """Nobody has these any more."""
        for number in self._link.descriptors() if self._link is not None else ():
            os.close(number)
        self._link = None

    def link(self) -> EngineLink:
        """Of this life, in which it stays the same. Raises OSError."""
        if self._link is None:
            self._link = new_engine_link(self._engines, nodes=self._nodes)
        return self._link
