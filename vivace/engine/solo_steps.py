"""Steps of their own for requests that were in a step in which an engine died."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from vivace.engine.executor import Runner
from vivace.protocol.step import StepPlan, StepResult

UNTIL_FIRST_TOKEN, ALWAYS = 1, 2
"""`Join.suspect`: when a request runs alone"""


class SoloSteps:
    """A runner that runs the spans of suspects one by one, behind everybody else's.

    The scheduler need not know: what a span computes does not depend on its company. If the engine
    dies again, the pulse shows a step with a single request in it.
    """

    def __init__(self, runner: Runner) -> None:
        self.capacity = runner.capacity
        self.close = runner.close
        self._runner = runner
        self._suspects: dict[int, int] = {}
        """row -> how long its request runs alone"""

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.leaves:
            self._suspects.pop(row, None)
        for join in plan.joins:
            if join.suspect:
                self._suspects[join.row] = join.suspect
        if not self._suspects:
            return self._runner.run(plan)
        result = self._run_apart(plan)
        for row, tokens in zip(plan.rows, result.tokens, strict=True):
            if tokens and self._suspects.get(row) == UNTIL_FIRST_TOKEN:
                del self._suspects[row]
        return result

    def _run_apart(self, plan: StepPlan) -> StepResult:
        spans = range(len(plan.rows))
        alone = [index for index in spans if plan.rows[index] in self._suspects]
        if not alone:
            return self._runner.run(plan)
        together = [index for index in spans if plan.rows[index] not in self._suspects]
        result = StepResult(
            number=plan.number, advanced=[0 for _ in spans], tokens=[[] for _ in spans]
        )
        book(result, together, self._runner.run(without(plan, alone)))
        for index in alone:
            book(result, [index], self._runner.run(only(plan, index)))
        return result


def without(plan: StepPlan, alone: Sequence[int]) -> StepPlan:
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


def book(result: StepResult, spans: Sequence[int], part: StepResult) -> None:
    """Enter the result of a part, whose i-th span is `spans[i]`."""
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
