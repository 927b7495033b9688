"""How often children may be restarted, and who is to blame for the death of an engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from vivace.protocol.heartbeat import Span
from vivace.protocol.messages import ALWAYS, UNTIL_FIRST_TOKEN, EngineDown

SHORT_LIFE = 32
"""Steps. Who kills an engine within so many of joining it did not get on since the last one."""
MAX_DEATHS = 3
"""In so many steps that killed an engine a request may have been, whatever it did in between."""

MAX_FAILED_STARTS = 5


class CrashBudget:
    """At most `crashes` within `window` seconds are forgiven."""

    def __init__(self, crashes: int = 3, window: float = 600.0) -> None:
        self.crashes = crashes
        self.window = window
        self._times: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Book a crash; False when it is one too many."""
        while self._times and self._times[0] <= now - self.window:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) <= self.crashes

    def refund(self, times: Iterable[float]) -> None:
        """Crashes at these times have been explained."""
        for time in times:
            if time in self._times:
                self._times.remove(time)

    @property
    def spent(self) -> int:
        """Crashes within the window at the last booking."""
        return len(self._times)

    def restart_note(self) -> str:
        return f"Restarting it ({self.spent} of {self.crashes} restarts spent)"

    def exhausted_note(self) -> str:
        return f"That is more than {self.crashes} deaths in {self.window / 60:.0f} minutes"


class Backoff:
    """How long to wait before a child that keeps dying is started again. Times are seconds."""

    def __init__(self, crashes: int = 3, window: float = 600.0, longest: float = 30.0) -> None:
        self._budget = CrashBudget(crashes, window)
        self._longest = longest

    def record_death(self, now: float) -> float:
        """Book a death; the first few in a window are followed by a start at once."""
        self._budget.spend(now)
        beyond = self._budget.spent - self._budget.crashes
        return 0.0 if beyond <= 0 else min(2.0 ** (beyond - 1), self._longest)


class FrontendStarts:
    """Which frontends are to be started, and when. Times are seconds."""

    def __init__(self, frontends: int, backoff: Backoff) -> None:
        self._backoff = backoff
        self._next_index = 0
        self._due = [(0.0, place) for place in range(frontends)]
        """(when, place)"""
        self._failed = 0

    def record_serving(self) -> None:
        self._failed = 0

    def record_death(self, place: int, served: bool, now: float) -> float:
        """How long to wait for another one: for ever, but not ever faster, they are replaced."""
        self._failed = 0 if served else self._failed + 1
        wait = self._backoff.record_death(now)
        self.add(place, now + wait)
        return wait

    @property
    def hopeless(self) -> bool:
        """So many in a row died before they served that the next will, too."""
        return self._failed >= MAX_FAILED_STARTS

    def add(self, place: int, when: float) -> None:
        self._due.append((when, place))

    def take_due(self, now: float) -> Iterator[tuple[int, int]]:
        """(index, place) of those to be started now. The index is new: the keys of a predecessor's
        requests must not come back."""
        for when, place in [due for due in self._due if due[0] <= now]:
            self._due.remove((when, place))
            yield self._next_index, place
            self._next_index += 1


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """What follows from the death of an engine."""

    restart: bool
    """False when it was one unexplained death too many"""
    refused: list[int] = field(default_factory=list)
    """keys of requests that must not come back"""
    suspects: dict[int, int] = field(default_factory=dict)
    """key -> `Request.suspect`"""

    def engine_down(self, reason: str, engine: int) -> EngineDown:
        """What frontends are told."""
        return EngineDown(
            reason=reason,
            restarting=self.restart,
            engine=engine,
            refused=self.refused,
            suspects=self.suspects,
        )


class CrashAttribution:
    """Which requests were in the steps in which engines died.

    Who was in one runs alone in the next engine; who kills that one too, alone, is found: it is
    refused, and the deaths it explains cost nothing. Who got on for a while in between is no sure
    killer (somebody may have killed the engine from outside) and has a death more.
    """

    def __init__(self, budgets: Sequence[CrashBudget]) -> None:
        """`budgets`: of each engine; a request may kill one after the other."""
        self._budgets = budgets
        self._deaths: dict[int, list[float]] = {}

    def record_death(
        self, step: int, spans: Sequence[Span], now: float, engine: int = 0
    ) -> RestartDecision:
        """An engine died in this step (no spans: between two) at `now` seconds."""
        budget = self._budgets[engine]
        self._forget(now - budget.window)
        for span in spans:
            self._deaths.setdefault(span.key, []).append(now)
        if len(spans) == 1 and self._is_found(spans[0], step):
            explained = self._deaths.pop(spans[0].key)
            for one in self._budgets:
                one.refund(explained)
            return RestartDecision(True, [spans[0].key], self._suspects())
        return RestartDecision(budget.spend(now), [], self._suspects())

    def _is_found(self, span: Span, step: int) -> bool:
        deaths = len(self._deaths[span.key])
        return deaths > MAX_DEATHS or (deaths > 1 and step - span.joined < SHORT_LIFE)

    def _suspects(self) -> dict[int, int]:
        return {
            key: UNTIL_FIRST_TOKEN if len(times) == 1 else ALWAYS
            for key, times in self._deaths.items()
        }

    def _forget(self, moment: float) -> None:
        self._deaths = {key: times for key, times in self._deaths.items() if times[-1] > moment}
