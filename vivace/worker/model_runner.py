"""A step on the model: hidden states, eagerly or replayed from a capture, then drawn tokens and
log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.platforms.ops.sampling import SamplingOps
from vivace.platforms.platform import GraphRecorder, StepGraph
from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob
from vivace.sampling.logprobs import score_prompt
from vivace.sampling.sampler import BAD_NUMBERS, Entries, Histories, Sampler
from vivace.worker.rows import RowStates, StepInputs
from vivace.worker.step_input import Spans, StepInput

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
    """A decode step of up to `rows` rows."""

    rows: int
    graph: StepGraph
    hidden: Tensor
    """[rows, n]: where the result is after a replay"""


class CapturedRunner:
    """Replays decode steps; prompts, and more rows than were captured, run eagerly.

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
        self._steps = sorted(steps, key=lambda step: step.rows)
        self._exact = exact
        self.captured = False

    def forward(self, step: StepInput) -> Tensor:
        found = self._find_step(len(step.counts)) if step.host.decode else None
        self.captured = found is not None
        if found is None:
            return self._eager.forward(step)
        rows = len(step.counts)
        if found.graph.computes_all_rows:
            self._inputs.pad_rows(rows, found.rows)
        self._attention.plan(step)
        found.graph.replay(rows)
        return found.hidden[:rows]

    def _find_step(self, rows: int) -> CapturedStep | None:
        for step in self._steps:
            if step.rows == rows or (step.rows > rows and not self._exact):
                return step
        return None


def capture_steps(
    eager: EagerRunner,
    recorder: GraphRecorder,
    inputs: StepInputs,
    attention: AttentionBackend,
    sizes: Sequence[int],
    progress: Callable[[float], None],
) -> list[CapturedStep]:
    """One decode step of each size, the largest first: the others fit into its buffers."""
    steps = []
    with torch.inference_mode():
        for done, rows in enumerate(sorted(set(sizes), reverse=True)):
            progress(done / len(sizes))
            inputs.pad_rows(0, rows)  # a recorder may run what it captures
            step = inputs.decode_step(rows, attention)
            graph, hidden = recorder.capture(lambda step=step: eager.forward(step))
            steps.append(CapturedStep(rows, graph, hidden))
    progress(1.0)
    return steps


# --- sampling -------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class StepOutput:
    """What the spans of a step produced. Indices are span indices."""

    drawn: np.ndarray
    """[n]: the span of each token that was drawn; its tokens follow each other"""
    entries: Entries
    """[n]: their rows and positions"""
    tokens: np.ndarray
    """[n] int64"""
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[PromptLogprobs]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    """spans whose numbers went wrong; they drew nothing and did not move on"""
    bad_tokens: np.ndarray | None = None
    """[T] bool: tokens whose hidden states are no numbers; None: there are none"""


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

    def sample(self, step: StepInput, spans: Spans, hidden: Tensor) -> StepOutput:
        """hidden[T, n] of the step -> StepOutput. Changes no row."""
        bad_tokens = self._ops.bad_tokens(hidden)
        bad = None if bad_tokens is None else _bad_spans(spans, bad_tokens)
        output = self._draw(step, spans, hidden, bad, bad_tokens)
        output.bad_tokens = bad_tokens
        if bad is not None:
            output.bad.update(dict.fromkeys(np.flatnonzero(bad).tolist(), BAD_NUMBERS))
        if self._rows.logprobs:
            self._score_prompts(spans, hidden, output)
        return output

    def _draw(
        self,
        step: StepInput,
        spans: Spans,
        hidden: Tensor,
        bad: np.ndarray | None,
        bad_tokens: np.ndarray | None,
    ) -> StepOutput:
        """`bad`: [S] bool, spans that draw nothing; `bad_tokens`: [T] bool."""
        states = self._rows
        kept = np.arange(len(spans.final)) if bad is None else np.flatnonzero(~bad[spans.final])
        final = spans.final[kept]
        entries = Entries(spans.rows[final], spans.positions[kept])
        if not len(final):
            return StepOutput(drawn=final, entries=entries, tokens=np.empty(0, np.int64))
        draws = self._sampler.sample(
            self._model.lm_head(_wanted_tokens(step, spans, hidden, kept)),
            entries,
            states.sampling,
            states.logprobs,
            Histories(tokens=states.tokens, prompt=states.prompt),
        )
        logprobs: dict[int, list[TokenLogprob]] = {}
        if spans.drafts is None and draws.bad is None:
            logprobs = {int(final[entry]): [one] for entry, one in draws.logprobs.items()}
            return StepOutput(drawn=final, entries=entries, tokens=draws.tokens, logprobs=logprobs)
        wrong = np.zeros(len(final), np.bool_) if draws.bad is None else draws.bad
        if bad_tokens is not None:
            wrong = wrong | bad_tokens[spans.last[kept]]
        stays = accepted(entries, draws.tokens, wrong, states.tokens)
        for entry in np.flatnonzero(stays).tolist():
            if entry in draws.logprobs:
                logprobs.setdefault(int(final[entry]), []).append(draws.logprobs[entry])
        first = _firsts(entries)
        return StepOutput(
            drawn=final[stays],
            entries=entries.select(stays),
            tokens=draws.tokens[stays],
            logprobs=logprobs,
            bad=dict.fromkeys(final[first & wrong].tolist(), BAD_NUMBERS),
        )

    def _score_prompts(self, spans: Spans, hidden: Tensor, output: StepOutput) -> None:
        for span, row in enumerate(spans.rows.tolist()):
            options = self._rows.logprobs.get(row)
            if options is not None and options.start >= 0 and span not in output.bad:
                scored = self._score_prompt(spans, hidden, span, row, options)
                if scored:
                    output.prompt_logprobs[span] = scored

    def _score_prompt(
        self, spans: Spans, hidden: Tensor, span: int, row: int, options: LogprobOptions
    ) -> list[PromptLogprobs]:
        """Prompt positions this span decides: position p is scored by the token before it."""
        before, count = int(spans.before[span]), int(spans.counts[span])
        prompt = int(self._rows.prompt[row])
        scored: list[PromptLogprobs] = []
        first = max(before + 1, options.start)
        end = min(before + count + 1, prompt)
        start = int(spans.starts[span])
        part = max(1, SCORE_ELEMENTS // self._vocabulary)
        for position in range(first, end, part):
            stop = min(end, position + part)
            offset = start + position - 1 - before
            logits = self._model.lm_head(hidden[offset : offset + stop - position])
            tokens = self._rows.tokens[row, position:stop].astype(np.int64)
            scored.append(score_prompt(self._ops, logits, tokens, position, options))
        return scored


def _bad_spans(spans: Spans, bad_tokens: np.ndarray) -> np.ndarray:
    """[S] bool: spans with a known token that is no number any more, from [T] bool.

    What a token stored in the KV memory reaches its own hidden state (it attends to itself), so
    this also finds bad keys and values, in the middle of a prompt too. Drafts do not count: those
    behind which nothing can be drawn are refused.
    """
    if spans.drafts is not None:
        places = np.arange(len(bad_tokens))
        drafts_from = np.repeat(spans.starts[1:] - spans.drafts, spans.counts)
        bad_tokens = bad_tokens & (places < drafts_from)
    return np.logical_or.reduceat(bad_tokens, spans.starts[:-1])


def _wanted_tokens(step: StepInput, spans: Spans, hidden: Tensor, kept: np.ndarray) -> Tensor:
    """hidden[n] of the tokens whose logits are wanted; no copy when that is every token."""
    if len(kept) == hidden.shape[0]:
        return hidden
    if len(kept) == len(step.logits_indices):
        return hidden.index_select(0, step.logits_indices)
    return hidden.index_select(0, torch.from_numpy(spans.last[kept]))


def _firsts(entries: Entries) -> np.ndarray:
    """[n] bool: the first entry of each row; those of a row follow each other."""
    first = np.ones(len(entries), np.bool_)
    first[1:] = entries.rows[1:] != entries.rows[:-1]
    return first


def accepted(
    entries: Entries, drawn: np.ndarray, wrong: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """[n] bool: which of the `drawn[n]` tokens stand. The first of a row does, unless its numbers
    are `wrong[n]`; each other one where the draft before it, in tokens[rows, ...], was itself the
    token that was drawn there."""
    stays = ~wrong
    follows = ~_firsts(entries)
    at = np.flatnonzero(follows)
    stays[at] &= drawn[at - 1] == tokens[entries.rows[at], entries.positions[at] - 1]
    for entry in at.tolist():
        stays[entry] &= stays[entry - 1]
    return stays
