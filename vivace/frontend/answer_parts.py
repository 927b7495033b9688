"""What the engine sends of an answer in parts: log-probabilities of the prompt, hidden states."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.protocol.messages import LogprobOptions, PromptLogprobs, TokenLogprob
from vivace.protocol.tasks import Payload


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
        best, wanted = len(top) // len(logprobs), len(ids)
        for row, logprob in enumerate(logprobs):
            first, last = row * best, (row + 1) * best
            tops = zip(top[first:last].tolist(), top_ids[first:last].tolist(), strict=True)
            own = chosen[row * wanted : (row + 1) * wanted].tolist()
            yield TokenLogprob(
                self._tokens[part.start + row],
                logprob,
                list(tops) or None,
                list(zip(own, ids, strict=True)) or None,
            )


class HiddenStates:
    """Those that have come and were not shown yet; `next`: position of what comes next."""

    def __init__(self, start: int) -> None:
        self.next = start
        self._parts: list[Payload] = []

    def add(self, part: Payload) -> None:
        """Keep what has not come before. Raises MissingDelta for a gap."""
        end = part.start + part.shape[0]
        if part.start > self.next:
            raise MissingDelta(f"hidden states from position {self.next} on were lost")
        if end > self.next:
            self._parts.append(part.rows(self.next - part.start, part.shape[0]))
            self.next = end

    def take(self, end: int) -> list[Payload]:
        """Those before position `end`."""
        taken: list[Payload] = []
        while self._parts and self._parts[0].start < end:
            part = self._parts.pop(0)
            count = part.shape[0]
            inside = min(count, end - part.start)
            taken.append(part.rows(0, inside))
            if inside < count:
                self._parts.insert(0, part.rows(inside, count))
        return taken


class MissingDelta(Exception):
    """Part of an answer never arrived; what came behind it must not be shown."""


def missing_rows(rows: PromptRows) -> MissingDelta:
    return MissingDelta(f"log-probabilities from prompt token {rows.next} on were lost")
