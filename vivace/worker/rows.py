"""The state of every row, and the inputs of a step, gathered from the rows into fixed buffers.

The state is the only place that knows where a sequence stands: plain arrays indexed by row. A
plan's joins, leaves and grants are applied first and stay; what a step computed is recorded at
its end, in assignments that cannot fail, so a step that raises leaves positions and tokens as they
were.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend, HostStep, StepPages
from vivace.protocol.messages import CacheGroup, LogprobOptions
from vivace.protocol.step import Join, StepPlan
from vivace.sampling.sampler import Entries, SamplingRows
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.step_input import Spans, StepInput


class PlanError(ValueError):
    """The plan contradicts the rows: a bug of the scheduler, told in its terms."""


class RowStates:
    """Fixed row state for `rows` sequences of up to `context` tokens.

    `tokens[rows, context + 1]`: everything known, and up to `drafts` more that a drafter proposes
    for the step under way; `known`, `computed`, `prompt`: [rows] lengths; `pages[rows, max_pages]`
    and `page_counts[rows]` of each cache group: where the KV is. Big arrays are zero pages of the
    operating system until a row uses them.
    """

    def __init__(
        self,
        rows: int,
        context: int,
        page_size: int,
        pages: int,
        drafts: int = 0,
        others: Sequence[CacheGroup] = (),
    ) -> None:
        """`pages`: of the first cache group; `others`: groups 1, 2 ..., of windows."""
        self.rows = rows
        self.drafts = drafts
        self.context = context
        self.page_size = page_size
        self.others = tuple(others)
        self.pool_pages = [pages, *(group.pages for group in others)]
        self.tokens = np.zeros((rows, context + 1 + drafts), np.int32)
        self.known = np.zeros(rows, np.int64)
        self.computed = np.zeros(rows, np.int64)
        self.prompt = np.zeros(rows, np.int64)
        self.max_pages = -(-(context + 1) // page_size)
        self.pages = [np.zeros((rows, self.max_pages), np.int32) for _ in self.pool_pages]
        self.page_counts = [np.zeros(rows, np.int64) for _ in self.pool_pages]
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
        for grant in plan.grants:
            self._grant(grant.row, grant.pages, grant.group)

    def check_rows(self, rows: list[int]) -> None:
        """PlanError unless these are rows, each named once."""
        if rows and not 0 <= min(rows) <= max(rows) < self.rows:
            raise PlanError(f"the step has rows {rows}, but there are {self.rows} rows")
        if len(set(rows)) < len(rows):
            raise PlanError(f"a row has two spans in one step: {rows}")

    def check_spans(self, rows: np.ndarray, counts: np.ndarray, ends: np.ndarray) -> None:
        """PlanError unless every span, `counts` tokens up to `ends`, lies within what its row knows
        (and drafts behind that) and has pages for. A row that nobody joined knows nothing."""
        known = self.known[rows]
        reach = known + self.drafts * (known > 0) if self.drafts else known
        for counts_in_group in self.page_counts:
            reach = np.minimum(reach, counts_in_group[rows] * self.page_size)
        np.minimum(reach, self.context, out=reach)
        wrong = (ends > reach) | (counts < 1)
        if wrong.any():
            self._explain(int(rows[wrong][0]), int(counts[wrong][0]))

    def record(
        self, rows: np.ndarray, advanced: np.ndarray, drawn: Entries, tokens: np.ndarray
    ) -> None:
        """Book a step: `rows` moved on by `advanced`; these `tokens` are known, too. Entries of a
        row follow each other, in the order of their positions."""
        self.computed[rows] += advanced
        self.tokens[drawn.rows, drawn.positions] = tokens
        self.known[drawn.rows] = drawn.positions + 1

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

    def _join(self, join: Join) -> None:
        self._check_join(join)
        row, length = join.row, len(join.tokens)
        self.tokens[row, :length] = join.tokens
        self.known[row], self.computed[row] = length, join.cached
        self.prompt[row] = join.prompt
        self.occupied[row] = True
        self.sampling.set(row, join.sampling, join.stop_ids)
        self.logprobs.pop(row, None)
        if join.logprobs is not None:
            self.logprobs[row] = join.logprobs
            self.sampling.ask_logprobs(row)
        self.page_counts[0][row] = 0
        self._grant(row, join.pages)
        for group, pages in enumerate(join.others, 1):
            first = self.others[group - 1].first_page(join.cached, self.page_size)
            self.page_counts[group][row] = first
            self._grant(row, pages, group)

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

    def _grant(self, row: int, pages: list[int], group: int = 0) -> None:
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
        self.pages[group][row, start:end] = pages
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


class StepInputs:
    """Fixed buffers for steps of up to `tokens` tokens; longer steps enlarge them for good.

    Steps of up to `single_tokens` tokens (at most one for each row) are laid out as decode steps:
    every token is a span that ends with itself. So they can be replays.
    """

    def __init__(
        self,
        states: RowStates,
        tokens: int,
        empty_pages: Sequence[int],
        single_tokens: int = 0,
        drafter: Drafter = NO_DRAFTS,
    ) -> None:
        self._states = states
        self._drafter = drafter
        self._empty_pages = tuple(empty_pages)
        self._single_tokens = min(single_tokens, states.rows)
        groups = len(states.pages)
        self._per_token = _Columns(2 + groups, tokens)
        # What decode steps use never moves: a captured step knows the addresses.
        self._decoding = _Columns(2 + groups, states.rows)
        self._per_row = _Columns(2, states.rows + 1)
        self._wanted = _Columns(1, states.rows * (1 + states.drafts))
        shape = (states.rows, states.max_pages)
        self._tables = [np.zeros(shape, np.int64) for _ in states.pages]

    def decode_step(self, rows: int, attention: AttentionBackend) -> StepInput:
        """The buffers of every decode step of up to `rows` rows, to capture one."""
        ids, positions, *slots = (torch.from_numpy(x) for x in self._decoding.take(rows))
        starts, lengths = (torch.from_numpy(x) for x in self._per_row.take(rows + 1))
        (last,) = (torch.from_numpy(x) for x in self._wanted.take(rows))
        tables = [table[:rows] for table in self._tables]
        return StepInput(
            input_ids=ids,
            positions=positions,
            groups=_step_pages(slots, tables),
            query_starts=starts,
            context_lens=lengths[:rows],
            logits_indices=last,
            attention=attention,
            counts=[1] * rows,
            host=HostStep(
                starts=np.arange(rows + 1),
                context_lens=np.ones(rows, np.int64),
                decode=True,
                rows=np.arange(rows),
            ),
        )

    def pad_rows(self, first: int, end: int) -> None:
        """Rows first..end of a decode step become harmless ones, for a capture that computes them
        all: one token at position 0 of the empty page, and nobody reads what comes of it. What
        stood there was of an earlier step, and would be written into pages of others by now."""
        ids, positions, *slots = self._decoding.take(end)
        starts, lengths = self._per_row.take(end + 1)
        ids[first:] = positions[first:] = 0
        for group, empty in enumerate(self._empty_pages):
            slots[group][first:] = empty * self._states.page_size
            self._tables[group][first:end, 0] = empty
        starts[first:] = np.arange(first, end + 1)
        lengths[first:end] = 1

    def gather(self, plan: StepPlan, attention: AttentionBackend) -> tuple[StepInput, Spans]:
        """Views on one step. Changes nothing that a row knows; raises PlanError when the plan
        contradicts them."""
        states = self._states
        states.check_rows(plan.rows)
        rows, counts = np.asarray(plan.rows, np.int64), np.asarray(plan.counts, np.int64)
        before = states.computed[rows]
        lengths = before + counts
        states.check_spans(rows, counts, lengths)
        decode = plan.counts.count(1) == len(plan.counts)
        starts = _starts(counts, decode)
        spans = self._spans(rows, counts, starts, before)
        token_rows, positions = (rows, before) if decode else _token_places(spans)
        total = len(token_rows)
        single = decode or total <= self._single_tokens
        if single:
            rows, lengths, starts = token_rows, positions + 1, np.arange(total + 1)
        ids, places, slots = self._tokens(token_rows, positions, single)
        tables = self._page_tables(rows, lengths, starts)
        query_starts, context_lens, logits_indices = self._per_span(spans, starts, lengths)
        step = StepInput(
            input_ids=ids,
            positions=places,
            groups=_step_pages(slots, tables),
            query_starts=query_starts,
            context_lens=context_lens,
            logits_indices=logits_indices,
            attention=attention,
            counts=[1] * total if single else plan.counts,
            host=HostStep(starts=starts, context_lens=lengths, decode=single, rows=rows),
        )
        return step, spans

    def _spans(
        self, rows: np.ndarray, counts: np.ndarray, starts: np.ndarray, before: np.ndarray
    ) -> Spans:
        """Which spans draw, and where; behind what a row knows there are drafts now."""
        known = self._states.known[rows]
        beyond = before + counts - known
        final = np.flatnonzero(beyond >= 0)
        last, positions, drafts = starts[final + 1] - 1, known[final], None
        if self._drafter.width and int(beyond.max()) > 0:
            drafts = np.maximum(beyond, 0)
            self._drafter.propose(self._states, rows, drafts)
            each = drafts[final] + 1
            ahead = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
            final = np.repeat(final, each)
            last = starts[final + 1] - 1 - drafts[final] + ahead
            positions = known[final] + ahead
        return Spans(
            rows=rows,
            counts=counts,
            starts=starts,
            before=before,
            final=final,
            last=last,
            positions=positions,
            drafts=drafts,
        )

    def _tokens(
        self, rows: np.ndarray, places: np.ndarray, single: bool
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(ids, positions, KV slots in each group), each [T]."""
        states, size = self._states, self._states.page_size
        columns = self._decoding if single else self._per_token
        ids, positions, *slots = columns.take(len(rows))
        positions[:] = places
        ids[:] = states.tokens[rows, positions]
        page, offset = np.divmod(positions, size)
        for pages, places_in_group in zip(states.pages, slots, strict=True):
            places_in_group[:] = pages[rows, page]
            places_in_group *= size
            places_in_group += offset
        return (
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            list(map(torch.from_numpy, slots)),
        )

    def _page_tables(
        self, rows: np.ndarray, lengths: np.ndarray, starts: np.ndarray
    ) -> list[np.ndarray]:
        """Of each group [S, pages of the longest span]: the empty page behind a row's own, and in
        front of those that a window over the span needs: they slid out and are somebody else's."""
        states, size = self._states, self._states.page_size
        used = -(-lengths // size)
        widest = int(used.max())
        tables = [table[: len(rows), :widest] for table in self._tables]
        uneven = len(rows) > 1 and int(used.min()) < widest
        for group, (table, empty) in enumerate(zip(tables, self._empty_pages, strict=True)):
            table[:] = states.pages[group][rows, :widest]
            if uneven:
                table[np.arange(widest) >= used[:, None]] = empty
            if group:
                before = lengths - (starts[1:] - starts[:-1])
                first = np.maximum(before - states.others[group - 1].reach, 0) // size
                table[np.arange(widest) < first[:, None]] = empty
        return tables

    def _per_span(
        self, spans: Spans, span_starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(query starts [S + 1], context lengths [S], tokens whose logits are wanted [N])"""
        count = len(lengths)
        starts, kept = self._per_row.take(count + 1)
        (last,) = self._wanted.take(len(spans.last))
        starts[:] = span_starts
        kept[:count] = lengths
        last[:] = spans.last
        return torch.from_numpy(starts), torch.from_numpy(kept[:count]), torch.from_numpy(last)


class _Columns:
    """A few equally long int64 buffers that are handed out as views from their start."""

    def __init__(self, count: int, length: int) -> None:
        self._buffer = np.zeros((count, max(1, length)), np.int64)

    def take(self, length: int) -> np.ndarray:
        """[count, length]"""
        if length > self._buffer.shape[1]:
            grown = max(length, 2 * self._buffer.shape[1])
            self._buffer = np.zeros((self._buffer.shape[0], grown), np.int64)
        return self._buffer[:, :length]


def _step_pages(slots: list[Tensor], tables: list[np.ndarray]) -> tuple[StepPages, ...]:
    return tuple(
        StepPages(slot_mapping=mapping, page_table=torch.from_numpy(table), host=table)
        for mapping, table in zip(slots, tables, strict=True)
    )


def _token_places(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """(row, position) of every token of the spans, each [T]"""
    positions = np.arange(spans.starts[-1])
    positions += np.repeat(spans.before - spans.starts[:-1], spans.counts)
    return np.repeat(spans.rows, spans.counts), positions


def _starts(counts: np.ndarray, decode: bool) -> np.ndarray:
    if decode:
        return np.arange(len(counts) + 1)
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
