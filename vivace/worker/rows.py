"""The state of every row: the only place that knows where a sequence stands.

Plain arrays indexed by row. A plan's joins, leaves and grants are applied first and stay; what a
step computed is recorded at its end, in assignments that cannot fail, so a step that raises
leaves positions and tokens as they were.
"""

from __future__ import annotations

import numpy as np

from vivace.protocol.messages import LogprobOptions
from vivace.protocol.step import Join, StepPlan
from vivace.sampling.sampler import SamplingRows


class PlanError(ValueError):
    """The plan contradicts the rows: a bug of the scheduler, told in its terms."""


class RowStates:
    """Fixed row state for `rows` sequences of up to `context` tokens.

    `tokens[rows, context + 1]`: everything known; `known`, `computed`, `prompt`: [rows] lengths;
    `pages[rows, max_pages]`, `page_counts[rows]`: where the KV is. Big arrays are zero pages of
    the operating system until a row uses them.
    """

    def __init__(self, rows: int, context: int, page_size: int, pages: int) -> None:
        self.rows = rows
        self.context = context
        self.page_size = page_size
        self.pool_pages = pages
        self.tokens = np.zeros((rows, context + 1), np.int32)
        self.known = np.zeros(rows, np.int64)
        self.computed = np.zeros(rows, np.int64)
        self.prompt = np.zeros(rows, np.int64)
        self.pages = np.full((rows, -(-(context + 1) // page_size)), 0, np.int32)
        self.page_counts = np.zeros(rows, np.int64)
        self.occupied = np.zeros(rows, np.bool_)
        self.sampling = SamplingRows(rows)
        self.logprobs: dict[int, LogprobOptions] = {}
        """rows whose request asked for log-probabilities"""

    def apply(self, plan: StepPlan) -> None:
        """Rows leave, join, and receive pages."""
        for row in plan.leaves:
            self._leave(row)
        for join in plan.joins:
            self._join(join)
        for row, pages in plan.grants:
            self._grant(row, pages)

    def check_rows(self, rows: list[int]) -> None:
        """PlanError unless these are rows, each named once."""
        if rows and not 0 <= min(rows) <= max(rows) < self.rows:
            raise PlanError(f"the step has rows {rows}, but there are {self.rows} rows")
        if len(set(rows)) < len(rows):
            raise PlanError(f"a row has two spans in one step: {rows}")

    def check_spans(self, rows: np.ndarray, counts: np.ndarray, ends: np.ndarray) -> None:
        """PlanError unless every span, `counts` tokens up to `ends`, lies within what its row knows
        and has pages for. A row that nobody joined knows nothing."""
        reach = np.minimum(self.known[rows], self.page_counts[rows] * self.page_size)
        np.minimum(reach, self.context, out=reach)
        wrong = (ends > reach) | (counts < 1)
        if wrong.any():
            self._explain(int(rows[wrong][0]), int(counts[wrong][0]))

    def record(
        self, rows: np.ndarray, advanced: np.ndarray, drawn_rows: np.ndarray, drawn: np.ndarray
    ) -> None:
        """Book a step: `rows` moved on by `advanced`; `drawn_rows` now know one token more."""
        self.computed[rows] += advanced
        self.tokens[drawn_rows, self.known[drawn_rows]] = drawn
        self.known[drawn_rows] += 1

    def _leave(self, row: int) -> None:
        """Give a row up. A row that is already empty stays so: `recover` repeats leaves."""
        if not 0 <= row < self.rows:
            raise PlanError(f"row {row} leaves, but there are {self.rows} rows")
        self.occupied[row] = False
        self.known[row] = self.computed[row] = self.page_counts[row] = 0
        self.sampling.clear(row)
        self.logprobs.pop(row, None)

    def _join(self, join: Join) -> None:
        self._check_join(join)
        row, length = join.row, len(join.tokens)
        self.tokens[row, :length] = join.tokens
        self.known[row], self.computed[row] = length, join.cached
        self.prompt[row] = join.prompt
        self.page_counts[row] = 0
        self.occupied[row] = True
        self.sampling.set(row, join.sampling, join.stop_ids)
        self.logprobs.pop(row, None)
        if join.logprobs is not None:
            self.logprobs[row] = join.logprobs
            self.sampling.ask_logprobs(row)
        self._grant(row, join.pages)

    def _check_join(self, join: Join) -> None:
        length = len(join.tokens)
        if not 0 <= join.row < self.rows:
            raise PlanError(f"request {join.key} joins row {join.row} of {self.rows}")
        if self.occupied[join.row]:
            raise PlanError(f"request {join.key} joins row {join.row}, which is taken")
        if not 0 < length <= self.context:
            raise PlanError(f"request {join.key}: {length} tokens, the row holds {self.context}")
        if not 0 <= join.cached < length or len(join.pages) * self.page_size < join.cached:
            raise PlanError(
                f"request {join.key}: {join.cached} cached of {length} tokens in "
                f"{len(join.pages)} pages of {self.page_size}"
            )
        if not 0 < join.prompt <= length:
            raise PlanError(f"request {join.key}: prompt of {join.prompt} in {length} tokens")

    def _grant(self, row: int, pages: list[int]) -> None:
        if not 0 <= row < self.rows or not self.occupied[row]:
            raise PlanError(f"row {row} is given pages but holds no request")
        start = int(self.page_counts[row])
        end = start + len(pages)
        if end > self.pages.shape[1]:
            raise PlanError(f"row {row}: {end} pages, the longest row has {self.pages.shape[1]}")
        if pages and not (min(pages) >= 0 and max(pages) < self.pool_pages):
            raise PlanError(f"row {row}: page ids {pages} outside the pool of {self.pool_pages}")
        self.pages[row, start:end] = pages
        self.page_counts[row] = end

    def _explain(self, row: int, count: int) -> None:
        if not self.occupied[row]:
            raise PlanError(f"row {row} has work but nobody joined it")
        start = int(self.computed[row])
        raise PlanError(
            f"row {row}: span {start}..{start + count} of {int(self.known[row])} known tokens "
            f"with pages for {int(self.page_counts[row]) * self.page_size} and positions for "
            f"{self.context}"
        )
