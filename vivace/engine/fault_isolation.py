"""Finding the request that makes steps fail."""

from __future__ import annotations

from vivace.engine.sequence import Sequence, State

Span = tuple[Sequence, int]


class FaultBisection:
    """Bisection: groups of spans that failed together run alone, in ever smaller groups.

    While there are suspects nothing else is planned. A group that runs has passed; one that
    fails is halved; who fails alone twice is the offender, so a failure that does not repeat
    costs nobody anything.
    """

    def __init__(self) -> None:
        self.groups: list[list[Span]] = []
        """of suspects"""
        self._failed_alone: set[int] = set()

    def next(self) -> list[Span]:
        """Who runs in the next step; empty when all have passed."""
        while self.groups:
            alive = [span for span in self.groups[-1] if span[0].state is State.RUNNING]
            if alive:
                return alive
            self.groups.pop()
        return []

    def passed(self) -> None:
        """The group that `next` returned has run."""
        self.groups.pop()
        if not self.groups:
            self._failed_alone.clear()

    def failed(self, spans: list[Span], on_trial: bool) -> Sequence | None:
        """A step with these spans failed. `on_trial`: it was what `next` returned.

        Returns the offender when it is found.
        """
        if on_trial:
            self.groups.pop()
        if len(spans) > 1:
            middle = (len(spans) + 1) // 2
            self.groups += [spans[middle:], spans[:middle]]
            return None
        for sequence, _ in spans:
            if sequence.key in self._failed_alone:
                return sequence
            self._failed_alone.add(sequence.key)
            self.groups.append(spans)
        return None
