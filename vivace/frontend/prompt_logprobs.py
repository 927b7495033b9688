"""The log-probabilities of a prompt, gathered as the engine sends them."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.protocol.output import PromptLogprobs, TokenLogprob
from vivace.protocol.request import LogprobOptions


class PromptRows:
    """One `TokenLogprob` per token from `LogprobOptions.start` on, made when it is looked at:
    millions of numbers stay the bytes they came as."""

    def __init__(self, tokens: list[int], options: LogprobOptions) -> None:
        """`tokens`: the prompt. `options.start` is not -1."""
        self._tokens = tokens
        self._options = options
        self._parts: list[PromptLogprobs] = []
        self.next = max(1, options.start)
        """prompt position of what comes next"""

    @property
    def complete(self) -> bool:
        return self.next >= len(self._tokens)

    def add(self, part: PromptLogprobs) -> bool:
        """Keep a part, unless it has come before; False when it does not go on where the last one
        ended, or has more tokens than the prompt."""
        end = part.start + len(part.logprobs) // 4
        if end <= self.next:
            return True
        if part.start != self.next or end > len(self._tokens):
            return False
        self._parts.append(part)
        self.next = end
        return True

    def __iter__(self) -> Iterator[TokenLogprob]:
        if self._options.start == 0:
            yield TokenLogprob(self._tokens[0], None)
        for part in self._parts:
            yield from self._rows(part)

    def _rows(self, part: PromptLogprobs) -> Iterator[TokenLogprob]:
        ids = self._options.token_ids
        logprobs = memoryview(part.logprobs).cast("f")
        top, top_ids = memoryview(part.top).cast("f"), memoryview(part.top_ids).cast("i")
        chosen = memoryview(part.chosen).cast("f")
        best, asked = len(top) // len(logprobs), len(ids)
        for row, logprob in enumerate(logprobs):
            first, last = row * best, (row + 1) * best
            tops = zip(top[first:last].tolist(), top_ids[first:last].tolist(), strict=True)
            own = chosen[row * asked : (row + 1) * asked].tolist()
            yield TokenLogprob(
                self._tokens[part.start + row],
                logprob,
                list(tops) or None,
                list(zip(own, ids, strict=True)) or None,
            )
