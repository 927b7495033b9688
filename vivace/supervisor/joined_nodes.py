"""The nodes behind the first, as the supervisor knows them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from vivace.protocol.ranks import NodePresence
from vivace.supervisor.child import Child

Farewell = Callable[[Collection[int], str, int], None]
"""tells these nodes that the server has ended, why (empty: it was stopped), and their exit code"""


class JoinedNodes:
    """Those that have joined, and call again when an engine dies or says that the server ends of
    something: whoever would tell them that none follows may have died with it."""

    def __init__(self, farewell: Farewell) -> None:
        self._farewell = farewell
        self._here: set[int] = set()
        self._told: dict[int, bool] = {}
        """by engine: it ended because it was told to, and so has told them that"""

    def hear(self, news: NodePresence) -> None:
        if news.here:
            self._here.add(news.node)
        else:
            self._here.discard(news.node)

    def forget(self) -> None:
        """Somebody else has ended them."""
        self._here.clear()

    def on_exit(self, engine: Child) -> None:
        self._told[engine.index] = engine.process.returncode == 0

    def end(self, cause: str, code: int) -> None:
        """No engine lives any more, and none follows. `cause`: of that; empty: the server was
        stopped."""
        if self._here and (cause or not all(self._told.values())):
            self._farewell(self._here, cause, code)
