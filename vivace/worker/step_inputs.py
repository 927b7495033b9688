"""The inputs of a step, gathered from the rows into fixed buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend, HostStep, StepEngines, StepPages
from vivace.platforms.host import upload
from vivace.platforms.memory import zeroed_memory
from vivace.platforms.platform import StepShape
from vivace.platforms.rows import GatherBuffers, Spans
from vivace.platforms.trees import lay_out_branches, lay_out_trees
from vivace.protocol.step import EngineShare, StepPlan
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput


class StepInputs:
    """Fixed buffers for steps of up to `tokens` tokens; longer steps enlarge them for good.

    Steps of up to `single_tokens[0]` tokens (or as many as are verified), and those of up to
    `single_tokens[1]` that are nothing but tokens with their drafts, or up to `single_tokens[0]` of
    each row's answer, are laid out as decode steps: every token is a span that ends with itself. So
    they can be replays.
    """

    def __init__(
        self,
        states: RowStates,
        tokens: int,
        single_tokens: tuple[int, int] = (0, 0),
        drafter: Drafter = NO_DRAFTS,
        engines: int = 1,
    ) -> None:
        """`engines`: so many take every step together"""
        self._states = states
        self._engines = engines
        self.drafts = drafter.width
        self._drafter = drafter
        # As decode steps several tokens of a row would each start from the same state.
        prompts, verified = (0, 0) if states.states else single_tokens
        groups, drawn = len(states.columns.pages), states.rows * (1 + states.drafts)
        self._single_tokens, self._verified_tokens = min(prompts, drawn), verified
        self._device = states.columns.known.device
        self._per_token = IndexColumns(2 + groups, tokens, self._device)
        # What decode steps use never moves: a captured step knows the addresses.
        self._decoding = IndexColumns(2 + groups, drawn, self._device)
        # Only where engines take steps together some of these tokens may be nobody's.
        self._marked = IndexColumns(1, drawn if engines > 1 else 1, self._device)
        self._per_row = IndexColumns(2, drawn + 1, self._device)
        self._wanted = IndexColumns(2, drawn, self._device)
        self._tables = tuple(self._new_table(drawn) for _ in states.columns.pages)
        self._paths = None
        if (parents := states.columns.parents) is not None:  # of single tokens only
            self._verified_tokens, shape = drawn, (groups, drawn, 1 + parents.shape[1])
            self._paths = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._sizes: tuple[int, int, int, bool, bool] = (0, 0, 0, False, False)
        self._views = self._buffers(self._per_token, 0, 0, 0, flat=False)
        """of the last step: the next one often has its shape"""

    def _new_table(self, rows: int) -> Tensor:
        """[rows, pages of the longest row] int64"""
        shape = (rows, self._states.max_pages)
        return (
            zeroed_memory(8 * shape[0] * shape[1], self._device)
            .tensor.view(torch.int64)
            .view(shape)
        )

    def decode_step(self, shape: StepShape, attention: AttentionBackend) -> StepInput:
        """The buffers of every decode step of up to such a shape, to capture one."""
        rows, each = shape.rows, shape.tokens_per_row
        out = self._buffers(self._decoding, shape.tokens, rows, shape.tokens, flat=each == 1)
        starts = np.arange(rows + 1) * each
        drafts = np.full(rows, each - 1) if each > 1 else None
        return StepInput(
            input_ids=out.input_ids,
            positions=out.positions,
            groups=_step_pages(out, rows, self._states.max_pages),
            query_starts=out.query_starts,
            context_lens=out.context_lens,
            logits_indices=out.logits_indices,
            attention=attention,
            shape=shape,
            states=self._states.states.prepare(rows, drafts) if self._states.states else None,
            host=HostStep(
                starts=starts,
                context_lens=np.full(rows, each, np.int64),
                decode=each == 1,
                rows=np.arange(rows),
                engines=StepEngines(
                    tokens=[shape.tokens] * self._engines, live=self._mark(shape.tokens)
                ),
            ),
        )

    def accompany(self, shares: Sequence[EngineShare], attention: AttentionBackend) -> StepInput:
        """A token that is nobody's, of a step of others."""
        one = StepShape(1, 1)
        self.pad(0, one)
        step = self.decode_step(one, attention)
        step.shape = self._find_common(shares)
        step.host.engines.tokens = count_tokens(shares)
        return step

    def pad(self, first: int, to: StepShape) -> None:
        """Rows from `first` on become harmless ones, for a capture that computes all of its shape:
        their tokens lie in the empty page, and nobody reads what comes of them. What stood there
        was of an earlier step, and would be written into pages of others by now."""
        each = to.tokens_per_row
        out = self._buffers(self._decoding, to.tokens, to.rows, 0, flat=each == 1)
        out.input_ids[first * each :] = 0
        out.positions[first * each :] = 0
        if (marked := self._mark(to.tokens)) is not None:
            marked[first * each :] = -1
        for group, empty in enumerate(self._states.columns.empty_pages):
            out.slots[group][first * each :] = empty * self._states.page_size
            out.tables[group][first : to.rows, : -(-each // self._states.page_size)] = empty
        for paths in out.paths or ():
            paths[first:, 0] = 0
        starts = np.arange(first, to.rows + 1) * each
        out.query_starts[first:] = upload(starts, self._device)
        out.context_lens[first:] = each
        if self._states.states:
            self._states.states.pad(first, to.rows)

    def gather(self, plan: StepPlan, attention: AttentionBackend) -> tuple[StepInput, Spans]:
        """Views on one step. Changes nothing that a row knows; raises PlanError when the plan
        contradicts them."""
        self._states.check_rows(plan.rows)
        spans = self._lay_out(plan)
        self._states.check_spans(spans)
        if spans.drafts is not None:
            self._drafter.propose(self._states.columns, spans.rows, spans.drafts)
            if self._paths is not None and spans.flat:
                spans = replace(spans, trees=lay_out_trees(self._states.columns, spans))
        return self._gather(spans, plan.shares, attention), spans

    def gather_branches(
        self, rows: np.ndarray, places: np.ndarray, attention: AttentionBackend
    ) -> StepInput:
        """Single tokens behind what rows know, each at the end of a way of drafts: `rows`[n] may
        name one several times, `places`[n, depth] are those of the way's tokens behind the known
        ones, where these stand already."""
        assert self._paths is not None
        count, depth = places.shape
        each = np.arange(count)
        trees = lay_out_branches(places, self._paths.shape[2] - 1, self._device)
        spans = Spans(
            rows=rows,
            counts=np.ones_like(each),
            starts=np.arange(count + 1),
            before=self._states.known[rows] + depth - 1,
            final=each,
            last=each,
            ahead=None,
            entry_rows=upload(rows, self._device),
            positions=self._wanted.take(count)[0],
            flat=True,
            trees=trees,
            places=places[:, -1],
        )
        return self._gather(spans, (), attention)

    def _gather(
        self, spans: Spans, shares: Sequence[EngineShare], attention: AttentionBackend
    ) -> StepInput:
        """`shares`: of each engine, where several take the step together"""
        total, shape = int(spans.starts[-1]), self._find_shape(spans)
        same = shape is not None
        if shares:
            shape = self._find_common(shares)
        laid_out = total if spans.flat else len(spans.rows)
        out = self._take(total, laid_out, len(spans.final), same, spans.flat)
        found = self._states.ops.gather(spans, out)
        return StepInput(
            input_ids=out.input_ids,
            positions=out.positions,
            groups=_step_pages(out, laid_out, found.width),
            query_starts=out.query_starts,
            context_lens=out.context_lens,
            logits_indices=out.logits_indices,
            attention=attention,
            shape=shape,
            states=self._states.states.gather(spans) if self._states.states else None,
            host=HostStep(
                starts=found.starts,
                context_lens=found.context_lens,
                decode=spans.flat,
                rows=found.rows,
                engines=StepEngines(
                    tokens=count_tokens(shares),
                    live=self._mark(total, out.positions) if same else None,
                ),
            ),
        )

    def _mark(self, tokens: int, positions: Tensor | None = None) -> Tensor | None:
        """The buffer of `StepEngines.live`, with these in it where there are any; None: all tokens
        of a step are somebody's"""
        if self._engines == 1:
            return None
        (marked,) = self._marked.take(tokens)
        return marked if positions is None else marked.copy_(positions)

    def _lay_out(self, plan: StepPlan) -> Spans:
        """Which spans draw; behind what a row knows there are drafts."""
        states = self._states
        rows, counts = np.asarray(plan.rows, np.int64), np.asarray(plan.counts, np.int64)
        decode = plan.counts.count(1) == len(plan.counts)
        starts = _starts(counts, decode)
        before = states.computed[rows]
        beyond = before + counts - states.known[rows]
        final = np.flatnonzero(beyond >= 0)
        if states.embeds:
            final = final[states.draws[rows[final]]]
        last, ahead, drafts = starts[final + 1] - 1, None, None
        if self._drafter.width and int(beyond.max()) > 0:
            drafts = np.maximum(beyond, 0)
            each = drafts[final] + 1
            ahead = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
            final = np.repeat(final, each)
            last = starts[final + 1] - 1 - drafts[final] + ahead
        return Spans(
            rows=rows,
            counts=counts,
            starts=starts,
            before=before,
            final=final,
            last=last,
            ahead=ahead,
            entry_rows=upload(rows[final], self._device),
            positions=self._wanted.take(len(final))[0],
            drafts=drafts,
            flat=decode or int(starts[-1]) <= self._most_flat(rows, counts, drafts),
        )

    def _most_flat(self, rows: np.ndarray, counts: np.ndarray, drafts: np.ndarray | None) -> int:
        """Tokens of such a step that are laid out each as a span."""
        verified = drafts is not None and (counts == drafts + 1).all()
        if not verified and int(counts.max()) <= self._single_tokens:  # not of prompts, either
            verified = (self._states.known[rows] > self._states.prompt[rows]).all()
        return max(self._single_tokens, self._verified_tokens * bool(verified))

    def _find_shape(self, spans: Spans) -> StepShape | None:
        """Of a step that a capture may serve: every row has as many tokens."""
        if spans.flat:
            return StepShape(int(spans.starts[-1]), 1)
        each = int(spans.counts[0])
        same = each <= 1 + self._states.drafts and bool((spans.counts == each).all())
        if self._states.states:  # it writes a state behind each draft
            same = same and spans.drafts is not None and bool((spans.drafts == each - 1).all())
        return StepShape(len(spans.rows), each) if same else None

    def _find_common(self, shares: Sequence[EngineShare]) -> StepShape | None:
        """Of a step that a capture may serve on all engines: each has one token in every row, and
        fills its rows up to the most that one has."""
        flat = all(share.single or share.tokens <= self._single_tokens for share in shares)
        return StepShape(max(count_tokens(shares)), 1) if flat else None

    def _take(self, tokens: int, spans: int, drawn: int, same: bool, flat: bool) -> GatherBuffers:
        """`same`: every row has as many tokens; `flat`: each is a span"""
        sizes = (tokens, spans, drawn, same, flat)
        if sizes != self._sizes:
            columns = self._decoding if same else self._per_token
            self._sizes = sizes
            self._views = self._buffers(columns, tokens, spans, drawn, flat=flat)
        return self._views

    def _buffers(
        self, columns: IndexColumns, tokens: int, spans: int, drawn: int, *, flat: bool
    ) -> GatherBuffers:
        ids, positions, *slots = columns.take(tokens)
        starts, lengths = self._per_row.take(spans + 1)
        return GatherBuffers(
            input_ids=ids,
            positions=positions,
            slots=tuple(slots),
            tables=self._tables,
            query_starts=starts,
            context_lens=lengths[:spans],
            logits_indices=self._wanted.take(drawn)[1],
            paths=self._paths[:, :tokens].unbind() if flat and self._paths is not None else None,
        )


class IndexColumns:
    """A few equally long int64 buffers that are handed out as views from their start."""

    def __init__(self, count: int, length: int, device: torch.device) -> None:
        self._count = count
        self._buffer = torch.zeros((count, max(1, length)), dtype=torch.int64, device=device)

    def take(self, length: int) -> Sequence[Tensor]:
        """`count` buffers [length]"""
        if length > self._buffer.shape[1]:
            grown = max(length, 2 * self._buffer.shape[1])
            self._buffer = self._buffer.new_zeros((self._count, grown))
        return self._buffer[:, :length].unbind()


def count_tokens(shares: Sequence[EngineShare]) -> list[int]:
    """Tokens that each engine of a step computes: one that has none computes one of nobody."""
    return [max(1, share.tokens) for share in shares]


def _step_pages(out: GatherBuffers, spans: int, width: int) -> tuple[StepPages, ...]:
    return tuple(
        StepPages(slot_mapping=slots, page_table=table[:spans, :width], paths=paths)
        for slots, table, paths in zip(
            out.slots, out.tables, out.paths or [None] * len(out.slots), strict=True
        )
    )


def _starts(counts: np.ndarray, decode: bool) -> np.ndarray:
    if decode:
        return np.arange(len(counts) + 1)
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
