"""From hidden states to what a step answers: drawn tokens and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.ops.sampling import SamplingOps
from vivace.protocol.output import PromptLogprobs, TokenLogprob
from vivace.protocol.request import LogprobOptions
from vivace.sampling.adjust import Histories
from vivace.sampling.logprobs import score_prompt
from vivace.sampling.sampler import BAD_NUMBERS, Sampler
from vivace.worker.inputs import Spans, StepInput
from vivace.worker.rows import RowStates
from vivace.worker.runner import RunnableModel

SCORE_ELEMENTS = 1 << 23
"""logits of prompt positions that exist at once (32 MiB in float32)"""


@dataclass(kw_only=True, slots=True)
class Output:
    """What the spans of a step produced. Indices are span indices."""

    drawn: np.ndarray
    """[n] spans that drew a token"""
    tokens: np.ndarray
    """[n] int64"""
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[PromptLogprobs]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    """spans whose numbers went wrong; they drew nothing and did not move on"""


class TokenHead:
    """The language model head: logits of the tokens that need them, then the sampler."""

    def __init__(
        self,
        model: RunnableModel,
        ops: SamplingOps,
        slots: RowStates,
        vocabulary: int,
        *,
        original_logprobs: bool = False,
    ) -> None:
        self._model = model
        self._ops = ops
        self._vocabulary = vocabulary
        self._sampler = Sampler(ops, original_logprobs=original_logprobs)
        self._slots = slots

    def read(self, step: StepInput, spans: Spans, hidden: Tensor) -> Output:
        """hidden[T, n] of the step -> Output. Changes no row."""
        bad = self._bad_spans(spans, hidden)
        final = spans.final if bad is None else spans.final[~bad[spans.final]]
        output = self._draw(step, spans, hidden, final)
        if bad is not None:
            output.bad.update(dict.fromkeys(np.flatnonzero(bad).tolist(), BAD_NUMBERS))
        if self._slots.logprobs:
            self._score_prompts(spans, hidden, output)
        return output

    def _bad_spans(self, spans: Spans, hidden: Tensor) -> np.ndarray | None:
        """[S] bool: spans with a token that is no number any more; None when there is none.

        What a token stored in the KV memory reaches its own hidden state (it attends to itself),
        so this also finds bad keys and values, in the middle of a prompt too.
        """
        bad = self._ops.bad_tokens(hidden)
        return None if bad is None else np.logical_or.reduceat(bad, spans.starts[:-1])

    def _draw(self, step: StepInput, spans: Spans, hidden: Tensor, final: np.ndarray) -> Output:
        if not len(final):
            return Output(drawn=final, tokens=np.empty(0, np.int64))
        slots, rows = self._slots, spans.rows[final]
        history = Histories(tokens=slots.tokens, known=slots.known, prompt=slots.prompt)
        draws = self._sampler.draw(
            self._model.logits(_last_tokens(step, spans, hidden, final)),
            rows,
            slots.sampling,
            slots.logprobs,
            history,
        )
        logprobs = {int(final[entry]): [one] for entry, one in draws.logprobs.items()}
        if draws.bad is None:
            return Output(drawn=final, tokens=draws.tokens, logprobs=logprobs)
        wrong = final[draws.bad].tolist()
        return Output(
            drawn=final[~draws.bad],
            tokens=draws.tokens[~draws.bad],
            logprobs={span: one for span, one in logprobs.items() if span not in wrong},
            bad=dict.fromkeys(wrong, BAD_NUMBERS),
        )

    def _score_prompts(self, spans: Spans, hidden: Tensor, output: Output) -> None:
        for span, row in enumerate(spans.rows.tolist()):
            options = self._slots.logprobs.get(row)
            if options is not None and options.start >= 0 and span not in output.bad:
                scored = self._score_prompt(spans, hidden, span, row, options)
                if scored:
                    output.prompt_logprobs[span] = scored

    def _score_prompt(
        self, spans: Spans, hidden: Tensor, span: int, row: int, options: LogprobOptions
    ) -> list[PromptLogprobs]:
        """Prompt positions this span decides: position p is scored by the token before it."""
        before, count = int(spans.before[span]), int(spans.counts[span])
        prompt = int(self._slots.prompt[row])
        scored: list[PromptLogprobs] = []
        first = max(before + 1, options.start)
        end = min(before + count + 1, prompt)
        start = int(spans.starts[span])
        part = max(1, SCORE_ELEMENTS // self._vocabulary)
        for position in range(first, end, part):
            stop = min(end, position + part)
            offset = start + position - 1 - before
            logits = self._model.logits(hidden[offset : offset + stop - position])
            tokens = self._slots.tokens[row, position:stop].astype(np.int64)
            scored.append(score_prompt(self._ops, logits, tokens, position, options))
        return scored


def _last_tokens(step: StepInput, spans: Spans, hidden: Tensor, final: np.ndarray) -> Tensor:
    """hidden[n] of the last token of each final span; no copy when that is every token."""
    if len(final) == hidden.shape[0]:
        return hidden
    if len(final) == len(step.last):
        return hidden.index_select(0, step.last)
    return hidden.index_select(0, torch.from_numpy(spans.starts[final + 1] - 1))
