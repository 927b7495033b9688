"""A step on the model: hidden states, eagerly or replayed from a capture, then drawn tokens and
log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.platforms.host import upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.platforms.platform import GraphRecorder, StepGraph, StepShape
from vivace.platforms.rows import Spans
from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob
from vivace.sampling.logprobs import PromptScores, TokenScores, score_prompt
from vivace.sampling.sampler import Entries, Histories, Sampler, SamplerOutput
from vivace.worker.rows import RowStates
from vivace.worker.step_input import StepInput
from vivace.worker.step_inputs import StepInputs

SCORE_ELEMENTS = 1 << 23
"""logits of prompt positions that exist at once (32 MiB in float32)"""


class RunnableModel(Protocol):
    """What of a model a runner calls (`models.causal_lm.CausalLM` is one)."""

    def forward(self, step: StepInput) -> Tensor:
        """-> hidden[T, hidden], after the final norm"""
        ...

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, vocabulary] float32"""
        ...


class ModelRunner(Protocol):
    """Computes hidden states; `captured` tells whether the last step was a replay."""

    captured: bool
    nbytes: int
    """of captures and their buffers"""

    def forward(self, step: StepInput) -> Tensor:
        """-> hidden[T, hidden]"""
        ...


class EagerRunner:
    """Calls the model, op by op. Works for every step; a capturing runner falls back on it."""

    captured = False
    nbytes = 0

    def __init__(self, model: RunnableModel, attention: AttentionBackend) -> None:
        self._model = model
        self._attention = attention

    def forward(self, step: StepInput) -> Tensor:
        self._attention.plan(step)
        return self._model.forward(step)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step of up to as many rows as its shape has."""

    shape: StepShape
    graph: StepGraph
    hidden: Tensor
    """[tokens, n]: where the result is after a replay"""


class CapturedRunner:
    """Replays steps whose rows have as many tokens each; prompts, and more rows than were captured,
    run eagerly.

    `exact`: a capture serves its own number of rows only (--disable-cuda-graph-padding).
    """

    def __init__(
        self,
        eager: EagerRunner,
        attention: AttentionBackend,
        inputs: StepInputs,
        steps: Sequence[CapturedStep],
        *,
        nbytes: int,
        exact: bool = False,
    ) -> None:
        self._eager = eager
        self.nbytes = nbytes
        self._attention = attention
        self._inputs = inputs
        self._steps = sorted(steps, key=lambda step: step.shape.rows)
        self._exact = exact
        self.captured = False

    def forward(self, step: StepInput) -> Tensor:
        shape = step.shape
        found = self._find_step(shape) if shape is not None else None
        self.captured = found is not None
        if shape is None or found is None:
            return self._eager.forward(step)
        if found.graph.computes_all_rows:
            self._inputs.pad(shape.rows, found.shape)
        self._attention.plan(step)
        found.graph.replay(step, shape)
        return found.hidden[: shape.tokens]

    def _find_step(self, shape: StepShape) -> CapturedStep | None:
        for step in self._steps:
            if step.shape.tokens_per_row == shape.tokens_per_row and (
                step.shape.rows == shape.rows or (step.shape.rows > shape.rows and not self._exact)
            ):
                return step
        return None


def capture_steps(
    eager: EagerRunner,
    recorder: GraphRecorder,
    inputs: StepInputs,
    attention: AttentionBackend,
    shapes: Sequence[StepShape],
    progress: Callable[[float], None],
) -> list[CapturedStep]:
    """One step of each shape, the largest first: the others fit into its buffers."""
    steps = []
    with torch.inference_mode():
        ordered = sorted(set(shapes), key=lambda shape: shape.tokens, reverse=True)
        for done, shape in enumerate(ordered):
            progress(done / len(shapes))
            inputs.pad(0, shape)  # a recorder may run what it captures
            step = inputs.decode_step(shape, attention)
            graph, hidden = recorder.capture(lambda step=step: eager.forward(step), shape)
            steps.append(CapturedStep(shape, graph, hidden))
    progress(1.0)
    return steps


# --- sampling -------------------------------------------------------------------------------


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


class SamplingHead:
    """The language model head: logits of the tokens that need them, then the sampler."""

    def __init__(
        self,
        model: RunnableModel,
        ops: SamplingOps,
        rows: RowStates,
        vocabulary: int,
        *,
        original_logprobs: bool = False,
    ) -> None:
        self._model = model
        self._ops = ops
        self._vocabulary = vocabulary
        self._sampler = Sampler(ops, original_logprobs=original_logprobs)
        self._rows = rows
        columns = rows.columns
        self._history = Histories(
            tokens=columns.tokens, prompt=columns.prompt, known=rows.known, drafts=rows.drafts
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
        )
        draws = self._sampler.sample(
            self._model.lm_head(_select_wanted(step, hidden)),
            entries,
            self._rows.sampling,
            self._rows.logprobs,
            self._history,
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
        stays = accepted(entries, draws.tokens, wrong, self._history.tokens)
        firsts = np.flatnonzero(_find_firsts(entries))
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
    ends = spans.starts[1:]
    if spans.drafts is not None:
        ends = ends - spans.drafts
    counts = torch.cat((bad_tokens.new_zeros(1, dtype=torch.int64), bad_tokens.cumsum(0)))
    before, after = (upload(at, bad_tokens.device) for at in (spans.starts[:-1], ends))
    return counts.index_select(0, after) > counts.index_select(0, before)


def _select_wanted(step: StepInput, hidden: Tensor) -> Tensor:
    """hidden[n] of the tokens whose logits are wanted; no copy when that is every token."""
    if len(step.logits_indices) == hidden.shape[0]:
        return hidden
    return hidden.index_select(0, step.logits_indices)


def _find_firsts(entries: Entries) -> np.ndarray:
    """[n] bool: the first entry of each row; those of a row follow each other."""
    first = np.ones(len(entries), np.bool_)
    first[1:] = entries.host_rows[1:] != entries.host_rows[:-1]
    return first


def accepted(entries: Entries, drawn: Tensor, wrong: Tensor, tokens: Tensor) -> Tensor:
    """[n] bool: which of the `drawn[n]` tokens stand. The first of a row does, unless its numbers
    are `wrong[n]`; each other one where the draft before it, in tokens[rows, ...], was itself the
    token that was drawn there, as all before it were."""
    first = _find_firsts(entries)
    start = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
    follows = upload(~first, drawn.device)
    drafts = tokens[entries.rows, entries.positions - 1]
    fails = wrong | (follows & (drafts != drawn.roll(1)))
    so_far = fails.cumsum(0)
    before = so_far - fails.long()
    return so_far == before.index_select(0, upload(start, drawn.device))
