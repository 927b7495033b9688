"""What engines that share layers inherit beside their own: they live and die together."""

from __future__ import annotations

import os

from vivace.protocol.bells import Bells, new_bells
from vivace.supervisor.messages import EngineLink


class LinkFiles:
    """Files without names, and bells, new for every life of the engines."""

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._files: tuple[int, ...] = ()
        self._bells: list[Bells] = []
        self.renew()

    def renew(self) -> None:
        """Nobody has the old ones any more. Raises OSError."""
        for number in self._files:
            os.close(number)
        for bells in self._bells:
            bells.close()
        self._files, self._bells = (), []
        self._files = tuple(os.memfd_create("vivace-ranks", os.MFD_CLOEXEC) for _ in range(3))
        self._bells = [new_bells() for _ in range(self._engines)]

    def link(self) -> EngineLink:
        memory, meeting, steps = self._files
        return EngineLink(memory=memory, meeting=meeting, steps=steps, bells=self._bells)
