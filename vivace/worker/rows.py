"""The state of every row, and the inputs of a step, gathered from the rows into fixed buffers.

The state is the only place that knows where a sequence stands: plain arrays indexed by row. A
plan's joins, leaves and grants are applied first and stay; what a step computed is recorded at
its end, in assignments that cannot fail, so a step that raises leaves positions and tokens as they
were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend, HostStep
from vivace.protocol.messages import LogprobOptions
from vivace.protocol.step import Join, StepPlan
from vivace.sampling.sampler import Entries, SamplingRows
from vivace.worker.drafter import NO_DRAFTS, Drafter


class PlanError(ValueError):
    """The plan contradicts the rows: a bug of the scheduler, told in its terms."""


class RowStates:
    """Fixed row state for `rows` sequences of up to `context` tokens.

    `tokens[rows, context + 1]`: everything known, and up to `drafts` more that a drafter proposes
    for the step under way; `known`, `computed`, `prompt`: [rows] lengths; `pages[rows, max_pages]`,
    `page_counts[rows]`: where the KV is. Big arrays are zero pages of the operating system until a
    row uses them.
    """

    def __init__(
        self, rows: int, context: int, page_size: int, pages: int, drafts: int = 0
    ) -> None:
        self.rows = rows
        self.drafts = drafts
        self.context = context
        self.page_size = page_size
        self.pool_pages = pages
        self.tokens = np.zeros((rows, context + 1 + drafts), np.int32)
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
        for grant in plan.grants:
            self._grant(grant.row, grant.pages)

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
        reach = np.minimum(reach, self.page_counts[rows] * self.page_size)
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


@dataclass(kw_only=True, slots=True)
class StepInput:
    """What a model's forward sees of a step: T tokens in S spans. Views on fixed buffers."""

    input_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    query_starts: Tensor
    """[S + 1] int64: the tokens of span i are query_starts[i]..query_starts[i + 1]"""
    context_lens: Tensor
    """[S] int64: context of the row including this step"""
    page_table: Tensor
    """[S, max_pages] int64; behind a row's pages stands the empty page"""
    slot_mapping: Tensor
    """[T] int64: page * page_size + offset, where each token's KV goes"""
    logits_indices: Tensor
    """[N] int64: the token rows whose logits are wanted (where spans reach what is known)"""
    attention: AttentionBackend
    counts: list[int]
    """query length of each span, on the host"""
    host: HostStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """The host side of a step's spans, as the head and the booking need it."""

    rows: np.ndarray
    """[S] int64"""
    counts: np.ndarray
    """[S] int64"""
    starts: np.ndarray
    """[S + 1] int64 token offsets"""
    before: np.ndarray
    """[S] int64: positions computed before this step"""
    final: np.ndarray
    """[N] int64: the span of each token whose logits are wanted: of the last known one and of the
    drafts behind it, where a span reaches it"""
    last: np.ndarray
    """[N] int64: those tokens"""
    positions: np.ndarray
    """[N] int64: of the tokens that are drawn from them"""
    drafts: np.ndarray | None = None
    """[S] int64: how many of a span's tokens are drafts; None: there are none"""


class StepInputs:
    """Fixed buffers for steps of up to `tokens` tokens; longer steps enlarge them for good.

    Steps of up to `single_tokens` tokens (at most one for each row) are laid out as decode steps:
    every token is a span that ends with itself. So they can be replays.
    """

    def __init__(
        self,
        states: RowStates,
        tokens: int,
        empty_page: int,
        single_tokens: int = 0,
        drafter: Drafter = NO_DRAFTS,
    ) -> None:
        self._states = states
        self._drafter = drafter
        self._empty_page = empty_page
        self._single_tokens = min(single_tokens, states.rows)
        self._per_token = _Columns(3, tokens)
        # What decode steps use never moves: a captured step knows the addresses.
        self._decoding = _Columns(3, states.rows)
        self._per_row = _Columns(2, states.rows + 1)
        self._wanted = _Columns(1, states.rows * (1 + states.drafts))
        self._table = np.zeros((states.rows, states.pages.shape[1]), np.int64)

    def decode_step(self, rows: int, attention: AttentionBackend) -> StepInput:
        """The buffers of every decode step of up to `rows` rows, to capture one."""
        ids, positions, slots = (torch.from_numpy(x) for x in self._decoding.take(rows))
        starts, lengths = (torch.from_numpy(x) for x in self._per_row.take(rows + 1))
        (last,) = (torch.from_numpy(x) for x in self._wanted.take(rows))
        table = self._table[:rows]
        return StepInput(
            input_ids=ids,
            positions=positions,
            slot_mapping=slots,
            query_starts=starts,
            context_lens=lengths[:rows],
            page_table=torch.from_numpy(table),
            logits_indices=last,
            attention=attention,
            counts=[1] * rows,
            host=HostStep(
                starts=np.arange(rows + 1),
                context_lens=np.ones(rows, np.int64),
                pages=table,
                decode=True,
                rows=np.arange(rows),
            ),
        )

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
        table = self._page_table(rows, lengths)
        query_starts, context_lens, logits_indices = self._per_span(spans, starts, lengths)
        step = StepInput(
            input_ids=ids,
            positions=places,
            slot_mapping=slots,
            query_starts=query_starts,
            context_lens=context_lens,
            page_table=torch.from_numpy(table),
            logits_indices=logits_indices,
            attention=attention,
            counts=[1] * total if single else plan.counts,
            host=HostStep(
                starts=starts, context_lens=lengths, pages=table, decode=single, rows=rows
            ),
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, positions, KV slots), each [T]."""
        states, size = self._states, self._states.page_size
        columns = self._decoding if single else self._per_token
        ids, positions, slots = columns.take(len(rows))
        positions[:] = places
        ids[:] = states.tokens[rows, positions]
        page, offset = np.divmod(positions, size)
        slots[:] = states.pages[rows, page]
        slots *= size
        slots += offset
        return torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(slots)

    def _page_table(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """[S, pages of the longest span]; the empty page behind a row's own."""
        used = -(-lengths // self._states.page_size)
        widest = int(used.max())
        table = self._table[: len(rows), :widest]
        table[:] = self._states.pages[rows, :widest]
        if len(rows) > 1 and int(used.min()) < widest:
            table[np.arange(widest) >= used[:, None]] = self._empty_page
        return table

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
