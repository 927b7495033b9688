"""How far a start is, over all ranks of an engine: they load at the same time, and are one bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vivace.protocol.message_socket import wait_for_any
from vivace.protocol.ranks import RankProgress

if TYPE_CHECKING:
    from vivace.launch.ranks import RankProcess

LOADING = "Loading weights"
"""`checkpoint.weights.STAGE`, whose module imports torch"""
REPORT_SECONDS = 0.1
"""between two messages of a rank, so that progress costs nothing"""

NEARLY = 0.99
Report = Callable[[str, float], None]


def report_to_engine(send: Callable[[RankProgress], None]) -> Report:
    """What a rank behind the first reports to."""
    said, read = -REPORT_SECONDS, 0.0

    def report(stage: str, fraction: float) -> None:
        nonlocal said, read
        now, done = time.monotonic(), fraction >= 1.0
        read = read if done else fraction
        if stage == LOADING and (done or now - said >= REPORT_SECONDS):
            said = now
            send(RankProgress(read, done))

    return report


class AllRanks:
    """What the first rank reports to: of the weights it tells what all ranks have read together.
    When the first has all of its own, it waits here for the others; raises RankLost where one has
    gone."""

    def __init__(self, report: Report, links: Sequence[RankProcess]) -> None:
        self._report = report
        self._links = list(links)
        """those that load"""
        self._read: dict[str, float] = {}
        self._told = "", 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        if stage != LOADING or not (self._links or self._read):
            self._tell(stage, fraction)
            return
        self._hear(0.0)
        if fraction < 1.0:
            self._read["rank 0"] = fraction
        while fraction >= 1.0 and self._links:
            self._tell(stage, self._share())
            self._hear(REPORT_SECONDS)
        self._tell(stage, self._share() if self._links else fraction)

    def _tell(self, stage: str, fraction: float) -> None:
        """What is news: who does not get on is noticed by that."""
        if (stage, fraction) != self._told:
            self._told = stage, fraction
            self._report(stage, fraction)

    def _share(self) -> float:
        """What several read counts more than once, so the end may come early."""
        return min(sum(self._read.values()), NEARLY)

    def _hear(self, seconds: float) -> None:
        heard = wait_for_any([link.control for link in self._links], seconds)
        for link in [link for link in self._links if link.control in heard]:
            for progress in link.progress():
                self._read[link.name] = progress.fraction
                if progress.done and link in self._links:  # tensors may be read twice
                    self._links.remove(link)
