"""Finding the request that makes steps fail, or that makes engines die."""

from __future__ import annotations

import msgspec

from vivace.engine.executor import StepWorker
from vivace.engine.sequence import Sequence, State
from vivace.protocol.step import StepPlan, StepResult

Span = tuple[Sequence, int]
UNTIL_FIRST_TOKEN, ALWAYS = 1, 2
"""`Join.suspect`: when a request runs alone"""


class FaultBisection:
    """Bisection: groups of spans that failed together run alone, in ever smaller groups.

    While there are suspects nothing else is planned. A group that runs has passed; one that
    fails is halved; who fails alone twice is the offender, so a failure that does not repeat
    costs nobody anything.
    """

    def __init__(self) -> None:
        self._groups: list[list[Span]] = []
        self._failed_alone: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def next(self) -> list[Span]:
        """Who runs in the next step; empty when all have passed."""
        while self._groups:
            alive = [span for span in self._groups[-1] if span[0].state is State.RUNNING]
            if alive:
                return alive
            self._groups.pop()
        return []

    def passed(self) -> None:
        """The group that `next` returned has run."""
        self._groups.pop()
        if not self._groups:
            self._failed_alone.clear()

    def failed(self, spans: list[Span], on_trial: bool) -> Sequence | None:
        """A step with these spans failed. `on_trial`: it was what `next` returned.

        Returns the offender when it is found.
        """
        if on_trial:
            self._groups.pop()
        if len(spans) > 1:
            middle = (len(spans) + 1) // 2
            self._groups += [spans[middle:], spans[:middle]]
            return None
        for sequence, _ in spans:
            if sequence.key in self._failed_alone:
                return sequence
            self._failed_alone.add(sequence.key)
            self._groups.append(spans)
        return None


class SoloSteps:
    """A `StepWorker` that runs the spans of suspects one by one, behind everybody else's.

    The scheduler need not know: what a span computes does not depend on its company. If the engine
    dies again, the heartbeat shows a step with a single request in it.
    """

    def __init__(self, worker: StepWorker) -> None:
        self.capacity = worker.capacity
        self.close = worker.close
        self._worker = worker
        self._suspects: dict[int, int] = {}
        """row -> how long its request runs alone"""

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.leaves:
            self._suspects.pop(row, None)
        for join in plan.joins:
            if join.suspect:
                self._suspects[join.row] = join.suspect
        if not self._suspects:
            return self._worker.run(plan)
        result = self._run_apart(plan)
        for row, tokens in zip(plan.rows, result.tokens, strict=True):
            if tokens and self._suspects.get(row) == UNTIL_FIRST_TOKEN:
                del self._suspects[row]
        return result

    def _run_apart(self, plan: StepPlan) -> StepResult:
        spans = range(len(plan.rows))
        alone = [index for index in spans if plan.rows[index] in self._suspects]
        if not alone:
            return self._worker.run(plan)
        together = [index for index in spans if plan.rows[index] not in self._suspects]
        result = StepResult(
            number=plan.number, advanced=[0 for _ in spans], tokens=[[] for _ in spans]
        )
        add_part(result, together, self._worker.run(without_spans(plan, alone)))
        for index in alone:
            add_part(result, [index], self._worker.run(only(plan, index)))
        return result


def without_spans(plan: StepPlan, alone: list[int]) -> StepPlan:
    """The plan without these spans. Rows are filled and emptied for all at once, as a failed step
    leaves them too."""
    kept = sorted(set(range(len(plan.rows))).difference(alone))
    return msgspec.structs.replace(
        plan,
        rows=[plan.rows[index] for index in kept],
        counts=[plan.counts[index] for index in kept],
    )


def only(plan: StepPlan, index: int) -> StepPlan:
    return StepPlan(number=plan.number, rows=[plan.rows[index]], counts=[plan.counts[index]])


def add_part(result: StepResult, spans: list[int], part: StepResult) -> None:
    """Add the result of a part, whose i-th span is `spans[i]`."""
    for index, span in enumerate(spans):
        result.advanced[span] = part.advanced[index]
        result.tokens[span] = part.tokens[index]
    for index, values in part.logprobs.items():
        result.logprobs[spans[index]] = values
    for index, values in part.prompt_logprobs.items():
        result.prompt_logprobs[spans[index]] = values
    for index, text in part.bad.items():
        result.bad[spans[index]] = text
    result.seconds += part.seconds
