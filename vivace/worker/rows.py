"""The rows of a worker: what a plan may do to them, and how far each can be by now.

Where a sequence stands is known on the device only (`platforms/rows.py`). The host checks plans and
sizes steps with upper bounds, which are exact again once the result of a step has been read. A
plan's joins, leaves and grants are applied first and stay; what a step computed is recorded at its
end, so a step that raises leaves positions and tokens as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.errors import StepRefused
from vivace.platforms.memory import zeroed_memory
from vivace.platforms.rows import (
    ColumnChange,
    RowColumns,
    RowOps,
    SampledTokens,
    Spans,
    TokensByRow,
)
from vivace.protocol.messages import CacheGroup, LogprobOptions
from vivace.protocol.step import Join, StepPlan
from vivace.protocol.tasks import GENERATE, Embed, Task
from vivace.sampling.sampler import SamplingRows
from vivace.worker.state_slots import StateSlots


class PlanError(StepRefused):
    """The plan contradicts the rows: a bug of the scheduler, told in its terms."""


class RowStates:
    """Fixed row state for `rows` sequences of up to `context` tokens, `drafts` more that a drafter
    proposes for the step under way, and the pages of each cache group."""

    def __init__(
        self,
        rows: int,
        context: int,
        page_size: int,
        pages: int,
        drafts: int = 0,
        others: Sequence[CacheGroup] = (),
        *,
        device: torch.device,
        row_ops: Callable[[RowColumns], RowOps],
        trees: bool = False,
    ) -> None:
        """`pages`: of the first cache group; `others`: groups 1, 2 ..., of windows, then of states;
        `trees`: drafts may be some."""
        self.rows = rows
        self.drafts = drafts
        self.context = context
        self.page_size = page_size
        self.others = tuple(others)
        self._windows = [group for group in others if not group.state]
        self.states = next(
            (StateSlots(rows, drafts, one.pages, device) for one in others if one.state), None
        )
        self.pool_pages = [pages, *(group.pages for group in self._windows)]
        self.max_pages = -(-(context + 1) // page_size)
        self.columns = self._allocate(device, trees)
        self.ops = row_ops(self.columns)
        self.known = np.zeros(rows, np.int64)
        """upper bounds of the column"""
        self.computed = np.zeros(rows, np.int64)
        """upper bounds of the column; what is known and not computed is exact"""
        self.prompt = np.zeros(rows, np.int64)
        self.page_counts = [np.zeros(rows, np.int64) for _ in self.pool_pages]
        self.occupied = np.zeros(rows, np.bool_)
        self.joined = np.zeros(rows, np.int64)
        """how often somebody joined each row"""
        self.sampling = SamplingRows(rows, device)
        self.logprobs: dict[int, LogprobOptions] = {}
        """rows whose request asked for log-probabilities"""
        self.embeds: dict[int, Embed] = {}
        """rows that want a vector of what they know"""
        self.draws = np.ones(rows, np.bool_)
        """not those"""
        self.hidden_state_starts: dict[int, int] = {}
        """rows that want hidden states, too -> from which position on"""

    def _allocate(self, device: torch.device, trees: bool) -> RowColumns:
        """The columns; on a CPU big ones are zero pages of the system until a row uses them."""

        def table(width: int) -> Tensor:
            memory = zeroed_memory(4 * self.rows * width, device).tensor
            return memory.view(torch.int32).view(self.rows, width)

        def lengths() -> Tensor:
            return torch.zeros(self.rows, dtype=torch.int64, device=device)

        return RowColumns(
            tokens=table(self.context + 1 + self.drafts),
            known=lengths(),
            computed=lengths(),
            prompt=lengths(),
            pages=tuple(table(self.max_pages) for _ in self.pool_pages),
            page_size=self.page_size,
            empty_pages=tuple(self.pool_pages),
            reaches=(None, *(group.reach for group in self._windows)),
            parents=table(self.drafts) if trees else None,
        )

    def apply(self, plan: StepPlan) -> None:
        """Rows leave, join, and receive pages; the device hears of it in one go."""
        if not (plan.leaves or plan.joins or plan.grants):
            return
        changes = RowChanges(self.columns)
        for row in plan.leaves:
            self._leave(row)
        for join in plan.joins:
            self._join(join, changes)
        for grant in plan.grants:
            self._grant(grant.row, grant.pages, grant.group, changes)
        joined = [] if self.states is None else [self.states.take_joined()]
        self.ops.scatter([*changes.collect(), *joined])

    def check_rows(self, rows: list[int]) -> None:
        """PlanError unless these are rows, each named once."""
        if rows and not 0 <= min(rows) <= max(rows) < self.rows:
            raise PlanError(f"the step has rows {rows}, but there are {self.rows} rows")
        if len(set(rows)) < len(rows):
            raise PlanError(f"a row has two spans in one step: {rows}")

    def check_spans(self, spans: Spans) -> None:
        """PlanError unless every span lies within what its row can know by now (and drafts behind
        that) and has pages for. A row that nobody joined knows nothing."""
        rows = spans.rows
        known = self.known[rows]
        reach = known + self.drafts * (known > 0) if self.drafts else known
        for counts_in_group in self.page_counts:
            reach = np.minimum(reach, counts_in_group[rows] * self.page_size)
        np.minimum(reach, self.context, out=reach)
        wrong = (spans.before + spans.counts > reach) | (spans.counts < 1)
        if wrong.any():
            self._explain(int(rows[wrong][0]), int(spans.counts[wrong][0]))

    def record(self, spans: Spans, draws: SampledTokens) -> None:
        """Enter a step; the host expects that every draft was right."""
        self.ops.record(spans, draws)
        if self.states is not None:
            self.states.record(spans, draws)
        self.computed[spans.rows] += spans.counts
        drawing = spans.rows[spans.final]
        self.known[drawing] += 1
        if spans.drafts is not None:
            self.known[spans.rows] += spans.drafts

    def extend(self, tokens: TokensByRow) -> None:
        """Rows, of which every step was read, know these, too."""
        for row, some in tokens.items():
            places = row * self.columns.tokens.shape[1] + self.known[row] + np.arange(len(some))
            change = ColumnChange(self.columns.tokens, places, np.array(some))
            self.known[row] += len(some)
            known = ColumnChange(self.columns.known, np.array([row]), self.known[[row]])
            self.ops.scatter([change, known])

    def settle(
        self, spans: Spans, joined: np.ndarray, advanced: np.ndarray, drawn: np.ndarray
    ) -> None:
        """The result of a step was read: `advanced` and `drawn` [S] are what came of what was
        expected. `joined`: of its rows, when it began; who left since is nobody's business."""
        same = self.joined[spans.rows] == joined
        self.computed[spans.rows] -= np.where(same, spans.counts - advanced, 0)
        self.known[spans.rows] -= np.where(same, _most_drawn(spans) - drawn, 0)

    def _leave(self, row: int) -> None:
        """Give a row up. A row that is already empty stays so: `recover` repeats leaves."""
        if not 0 <= row < self.rows:
            raise PlanError(f"row {row} leaves, but there are {self.rows} rows")
        self.occupied[row] = False
        self.known[row] = self.computed[row] = 0
        for counts in self.page_counts:
            counts[row] = 0
        self.sampling.clear(row)
        self.logprobs.pop(row, None)
        self._set_task(row, GENERATE)

    def _set_task(self, row: int, task: Task) -> None:
        self.embeds.pop(row, None)
        self.hidden_state_starts.pop(row, None)
        self.draws[row] = not isinstance(task, Embed)
        if isinstance(task, Embed):
            self.embeds[row] = task
        elif task.hidden_state_start >= 0:
            self.hidden_state_starts[row] = task.hidden_state_start

    def _join(self, join: Join, changes: RowChanges) -> None:
        self._check_join(join)
        row, length = join.row, len(join.tokens)
        changes.join(join)
        self.known[row], self.computed[row] = length, join.cached
        self.prompt[row] = join.prompt
        self.occupied[row] = True
        self.joined[row] += 1
        self.sampling.set(row, join.sampling)
        self.logprobs.pop(row, None)
        if join.logprobs is not None:
            self.logprobs[row] = join.logprobs
            self.sampling.ask_logprobs(row)
        self._set_task(row, join.task)
        self.page_counts[0][row] = 0
        self._grant(row, join.pages, 0, changes)
        windows = zip(self._windows, join.others, strict=False)
        for number, (group, pages) in enumerate(windows, 1):
            self.page_counts[number][row] = group.first_page(join.cached, self.page_size)
            self._grant(row, pages, number, changes)
        if self.states is not None:
            self.states.join(row, join.others[-1], join.cached)

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
        if len(join.others) != len(self.others):
            raise PlanError(
                f"request {join.key}: pages of {len(join.others)} further groups, there are "
                f"{len(self.others)}"
            )
        if not 0 < join.prompt <= length:
            raise PlanError(f"request {join.key}: prompt of {join.prompt} in {length} tokens")

    def _grant(self, row: int, pages: list[int], group: int, changes: RowChanges) -> None:
        if not 0 <= row < self.rows or not self.occupied[row]:
            raise PlanError(f"row {row} is given pages but holds no request")
        if not 0 <= group < len(self.pool_pages):
            raise PlanError(f"row {row} is given pages of group {group}, which is not there")
        start, total = int(self.page_counts[group][row]), self.pool_pages[group]
        end = start + len(pages)
        if end > self.max_pages:
            raise PlanError(f"row {row}: {end} pages, the longest row has {self.max_pages}")
        if pages and not (min(pages) >= 0 and max(pages) < total):
            raise PlanError(f"row {row}: page ids {pages} outside the pool of {total}")
        changes.grant(group, row, start, pages)
        self.page_counts[group][row] = end

    def _explain(self, row: int, count: int) -> None:
        if not self.occupied[row]:
            raise PlanError(f"row {row} has work but nobody joined it")
        start = int(self.computed[row])
        raise PlanError(
            f"row {row}: span {start}..{start + count} of {int(self.known[row])} known tokens "
            f"with pages for {min(int(c[row]) for c in self.page_counts) * self.page_size} and "
            "positions for "
            f"{self.context}"
        )


def _most_drawn(spans: Spans) -> np.ndarray:
    """[S] int64: how many tokens a span may draw"""
    most = np.zeros(len(spans.rows), np.int64)
    most[spans.final] = 1
    return most if spans.drafts is None else most + spans.drafts


class RowChanges:
    """What a plan changes in the columns, collected on the host."""

    def __init__(self, columns: RowColumns) -> None:
        self._columns = columns
        self._joins: list[Join] = []
        self._places: dict[int, list[int]] = {}
        self._pages: dict[int, list[int]] = {}

    def join(self, join: Join) -> None:
        self._joins.append(join)

    def grant(self, group: int, row: int, start: int, pages: list[int]) -> None:
        """`pages` of a group from the row's place `start` on."""
        first = row * self._columns.pages[group].shape[1] + start
        self._places.setdefault(group, []).extend(range(first, first + len(pages)))
        self._pages.setdefault(group, []).extend(pages)

    def collect(self) -> list[ColumnChange]:
        columns = self._columns
        changes = [
            ColumnChange(
                columns.pages[group], np.array(places, np.int64), np.array(pages, np.int64)
            )
            for (group, places), pages in zip(
                self._places.items(), self._pages.values(), strict=True
            )
            if places
        ]
        if not self._joins:
            return changes
        rows = np.array([join.row for join in self._joins], np.int64)
        lengths = np.array([len(join.tokens) for join in self._joins], np.int64)
        firsts = rows * columns.tokens.shape[1]
        places = np.repeat(firsts - np.cumsum(lengths) + lengths, lengths)
        tokens = [np.array(join.tokens, np.int64) for join in self._joins]
        cached = np.array([join.cached for join in self._joins], np.int64)
        prompts = np.array([join.prompt for join in self._joins], np.int64)
        return [
            *changes,
            ColumnChange(columns.tokens, places + np.arange(len(places)), np.concatenate(tokens)),
            ColumnChange(columns.known, rows, lengths),
            ColumnChange(columns.computed, rows, cached),
            ColumnChange(columns.prompt, rows, prompts),
        ]
