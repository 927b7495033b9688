"""What the rows of a step get of its hidden states: tokens, or what other heads make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.platforms.rows import Spans, TokensByRow
from vivace.platforms.trees import accept_drafts
from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob
from vivace.protocol.step import StepPlan
from vivace.protocol.tasks import Payload
from vivace.sampling.logprobs import PromptScores, TokenScores, score_prompt
from vivace.sampling.processors import (
    Entries,
    Histories,
    LogitsProcessors,
    ProcessorFactory,
    standard_processors,
)
from vivace.sampling.sampler import Sampler, SamplerOutput
from vivace.worker.drafters.relaxed import EXACT, AcceptThresholds, choose_draw
from vivace.worker.model_runner import RunnableModel
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput

SCORE_ELEMENTS = 1 << 23
"""logits of prompt positions that exist at once (32 MiB in float32)"""


@dataclass(kw_only=True, slots=True)
class StepOutput:
    """What S spans of a step, of T tokens, produced. Its tensors may still be under way."""

    drawn: np.ndarray
    """[n] int64: the span of each entry; those of a span follow each other"""
    tokens: Tensor
    """[n] int64, always inside the vocabulary; meaningless where it does not stay"""
    stays: Tensor
    """[n] bool: not those behind a refused draft, nor those of bad spans"""
    bad_spans: Tensor
    """[S] bool: whose numbers went wrong; they drew nothing and did not move on"""
    bad_tokens: Tensor
    """[T] bool: whose hidden states are no numbers"""
    scores: TokenScores | None = None
    """of entries that want log-probabilities"""
    prompt_scores: Sequence[tuple[int, PromptScores]] = ()
    """(span, those of some of its tokens), in the order of positions"""
    payloads: Sequence[SpanPayload] = ()
    """of rows that want more than tokens, or something else"""
    order: Tensor | None = None
    """[T] int64, where drafts are trees: the token that belongs to each place (DraftTrees)"""

    def read_logprobs(self, stays: np.ndarray) -> dict[int, list[TokenLogprob]]:
        """Span -> those of its tokens that stay; `stays` on the host."""
        found: dict[int, list[TokenLogprob]] = {}
        if self.scores is not None:
            for entry, logprob in self.scores.read().items():
                if stays[entry]:
                    found.setdefault(int(self.drawn[entry]), []).append(logprob)
        return found

    def read_prompt_logprobs(self, bad_spans: np.ndarray) -> dict[int, list[PromptLogprobs]]:
        """Span -> its parts, unless it is bad; `bad_spans` on the host."""
        found: dict[int, list[PromptLogprobs]] = {}
        for span, scores in self.prompt_scores:
            if not bad_spans[span]:
                found.setdefault(span, []).append(scores.read())
        return found

    def record(self) -> None:
        """Enter what rows keep for their next spans, when the rows have moved on."""
        for payload in self.payloads:
            payload.record()

    def read_payloads(self, advanced: np.ndarray) -> dict[int, Payload]:
        """Span -> what it got, where it moved on by `advanced` positions, on the host."""
        found = {each.span: each.read(int(advanced[each.span])) for each in self.payloads}
        return {span: payload for span, payload in found.items() if payload is not None}


class SpanPayload(Protocol):
    """What a head makes of one span; it may still be under way."""

    @property
    def span(self) -> int: ...

    def record(self) -> None:
        """The step is entered: keep what the row's next span needs."""
        ...

    def read(self, advanced: int) -> Payload | None:
        """Of a span that moved on by so many positions."""
        ...


class Head(Protocol):
    """What rows of one kind get besides tokens."""

    @property
    def rows(self) -> Mapping[int, object]:
        """Those of this kind."""
        ...

    def read(self, spans: Spans, hidden: Tensor) -> Iterator[SpanPayload]:
        """hidden[T, n] of a step -> of those spans that are its rows'. Changes no row, waits for
        nothing."""
        ...


class Heads(Protocol):
    """What a worker asks about the rows of its steps."""

    def update(self, plan: StepPlan) -> None:
        """Rows have left and joined."""
        ...

    def needs_tokens(self, spans: Spans) -> bool:
        """Whether what these rows have drawn must be on the host before `read`."""
        ...

    def landed(self, drawn: TokensByRow, *, at_once: bool) -> TokensByRow:
        """As of `HostState`"""
        ...

    def why_stuck(self, row: int) -> tuple[int, str] | None:
        """Status and why, where what constrains the row is to blame that its numbers are bad."""
        ...

    def read(self, step: StepInput, spans: Spans, hidden: Tensor) -> StepOutput:
        """hidden[T, n] of the step -> StepOutput. Changes no row, waits for nothing."""
        ...


class StepHeads:
    """The heads of a worker. A step may have rows of every kind: which one a row is of its task
    said when it joined (`RowStates`). The sampling head judges the numbers of all."""

    def __init__(self, sampling: SamplingHead, others: Sequence[Head]) -> None:
        self._sampling = sampling
        self._others = others

    def update(self, plan: StepPlan) -> None:
        if plan.joins or plan.leaves:
            self._sampling.processors.update(plan)

    def needs_tokens(self, spans: Spans) -> bool:
        processors = self._sampling.processors
        return bool(processors.rows) and processors.needs_tokens(spans.rows)

    def landed(self, drawn: TokensByRow, *, at_once: bool) -> TokensByRow:
        return self._sampling.processors.landed(drawn, at_once=at_once)

    def why_stuck(self, row: int) -> tuple[int, str] | None:
        return self._sampling.processors.why_stuck(row)

    def read(self, step: StepInput, spans: Spans, hidden: Tensor) -> StepOutput:
        output = self._sampling.sample(step, spans, hidden)
        if output.order is not None and any(head.rows for head in self._others):
            hidden = hidden[output.order]
        for head in self._others:
            if head.rows:
                output.payloads = (*output.payloads, *head.read(spans, hidden))
        return output


# --- tokens ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingSettings:
    original_logprobs: bool = False
    """log-probabilities are those at temperature 1"""
    thresholds: AcceptThresholds = EXACT
    processors: Sequence[ProcessorFactory] = ()
    """behind those that every worker has"""


class SamplingHead:
    """The language model head: logits of the tokens that need them, then the sampler."""

    def __init__(
        self,
        model: RunnableModel,
        ops: SamplingOps,
        rows: RowStates,
        vocabulary: int,
        settings: SamplingSettings = SamplingSettings(),
    ) -> None:
        self._model = model
        self._ops = ops
        self._vocabulary = vocabulary
        self._rows = rows
        columns = rows.columns
        self._history = Histories(
            tokens=columns.tokens, prompt=columns.prompt, known=rows.known, drafts=rows.drafts
        )
        standard = standard_processors(ops, self._history, rows.rows, columns.tokens.device)
        others = [create(ops, self._history) for create in settings.processors]
        self.processors = LogitsProcessors([*standard, *others], rows.rows)
        draw = choose_draw(ops, columns.tokens, settings.thresholds)
        self._sampler = Sampler(
            ops, self.processors, draw, original_logprobs=settings.original_logprobs
        )

    def sample(self, step: StepInput, spans: Spans, hidden: Tensor) -> StepOutput:
        """hidden[T, n] of the step -> StepOutput. Changes no row, waits for nothing."""
        bad_tokens = self._ops.bad_tokens(hidden)
        scores = self._score_prompts(spans, hidden) if self._rows.logprobs else ()
        if not len(spans.final):
            return _leave_undrawn(spans, bad_tokens, scores)
        entries = Entries(
            rows=spans.entry_rows,
            positions=spans.positions,
            host_rows=spans.rows[spans.final],
            paths=spans.trees and spans.trees.entries,
        )
        draws = self._sampler.sample(
            self._model.lm_head(_select_wanted(step, hidden)),
            entries,
            self._rows.sampling,
            self._rows.logprobs,
        )
        bad_spans, stays = self._judge(step, spans, entries, draws, bad_tokens)
        return StepOutput(
            drawn=spans.final,
            tokens=draws.tokens,
            stays=stays,
            bad_spans=bad_spans,
            bad_tokens=bad_tokens,
            scores=draws.logprobs,
            prompt_scores=scores,
            order=spans.trees and spans.trees.straighten(stays),
        )

    def _judge(
        self,
        step: StepInput,
        spans: Spans,
        entries: Entries,
        draws: SamplerOutput,
        bad_tokens: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """(bad spans [S] bool, entries that stay [n] bool)"""
        if spans.drafts is None and len(entries) == len(bad_tokens):  # a span is one token
            bad_spans = bad_tokens | draws.bad
            return bad_spans, ~bad_spans
        bad_spans = find_bad_spans(spans, bad_tokens)
        final = upload(spans.final, bad_tokens.device)
        wrong = draws.bad | bad_spans.index_select(0, final)
        if spans.drafts is None:
            return bad_spans.index_copy_(0, final, wrong), ~wrong
        wrong |= bad_tokens.index_select(0, step.logits_indices)
        assert spans.ahead is not None
        stays = accept_drafts(spans, _select_wanted(step, step.input_ids), draws.tokens, wrong)
        firsts = np.flatnonzero(spans.ahead == 0)
        first = upload(firsts, bad_tokens.device)
        first_spans = upload(spans.final[firsts], bad_tokens.device)
        return bad_spans.index_copy_(0, first_spans, wrong.index_select(0, first)), stays

    def _score_prompts(self, spans: Spans, hidden: Tensor) -> list[tuple[int, PromptScores]]:
        return [
            (span, scores)
            for span, row in enumerate(spans.rows.tolist())
            if (options := self._rows.logprobs.get(row)) is not None and options.start >= 0
            for scores in self._score_prompt(spans, hidden, span, row, options)
        ]

    def _score_prompt(
        self, spans: Spans, hidden: Tensor, span: int, row: int, options: LogprobOptions
    ) -> Iterator[PromptScores]:
        """Prompt positions this span decides: position p is scored by the token before it."""
        before, count = int(spans.before[span]), int(spans.counts[span])
        prompt = int(self._rows.prompt[row])
        first = max(before + 1, options.start)
        end = min(before + count + 1, prompt)
        start = int(spans.starts[span])
        part = max(1, SCORE_ELEMENTS // self._vocabulary)
        for position in range(first, end, part):
            stop = min(end, position + part)
            offset = start + position - 1 - before
            logits = self._model.lm_head(hidden[offset : offset + stop - position])
            tokens = self._history.tokens[row, position:stop].long()
            yield score_prompt(self._ops, logits, tokens, position, options)


def _leave_undrawn(
    spans: Spans, bad_tokens: Tensor, scores: Sequence[tuple[int, PromptScores]]
) -> StepOutput:
    """Of spans that end before what their rows know."""
    nothing = bad_tokens.new_empty(0, dtype=torch.int64)
    return StepOutput(
        drawn=spans.final,
        tokens=nothing,
        stays=nothing.bool(),
        bad_spans=find_bad_spans(spans, bad_tokens),
        bad_tokens=bad_tokens,
        prompt_scores=scores,
    )


def find_bad_spans(spans: Spans, bad_tokens: Tensor) -> Tensor:
    """[S] bool: spans with a known token that is no number any more, from [T] bool.

    What a token stored in the KV memory reaches its own hidden state (it attends to itself), so
    this also finds bad keys and values, in the middle of a prompt too. Drafts do not count: those
    behind which nothing can be drawn are refused.
    """
    ends = spans.starts[:-1] + spans.known
    counts = torch.cat((bad_tokens.new_zeros(1, dtype=torch.int64), bad_tokens.cumsum(0)))
    before, after = (upload(at, bad_tokens.device) for at in (spans.starts[:-1], ends))
    return counts.index_select(0, after) > counts.index_select(0, before)


def _select_wanted(step: StepInput, hidden: Tensor) -> Tensor:
    """Of hidden[T], or what else tokens have, those whose logits are wanted; no copy when all
    are."""
    if len(step.logits_indices) == hidden.shape[0]:
        return hidden
    return hidden.index_select(0, step.logits_indices)
