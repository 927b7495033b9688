"""Stop strings in a growing text, also when they lie across chunk borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopHit:
    """`text` is what may still be shown (the stop string itself only with `keep`)."""

    text: str
    matched: str


class StopStrings:
    """Watches a text for the first stop string that becomes complete; ties go to the longest.

    The answer does not depend on how the text is cut into chunks. Text that could be the
    beginning of a stop string is held back, unless `keep` (no_stop_trim) shows matches anyway.
    Cost: nothing per character while no stop string has begun, else one Knuth-Morris-Pratt step
    per character and stop string.
    """

    __slots__ = ("_failures", "_firsts", "_held", "_keep", "_states", "_stops")

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self._stops = list(stops)
        self._failures = [_failure_table(stop) for stop in stops]
        self._states = [0] * len(self._stops)
        self._firsts = frozenset(stop[0] for stop in stops)
        self._held = ""
        self._keep = keep

    def push(self, text: str) -> str | StopHit:
        """New text in; text that is safe to show out, or the hit that ends the answer."""
        if not any(self._states) and self._firsts.isdisjoint(text):
            return text
        for index, char in enumerate(text):
            matched = self._step(char)
            if matched is not None:
                return self._hit(self._held + text[: index + 1], matched)
        return self._release(self._held + text)

    def flush(self) -> str:
        """The answer ended otherwise: what was held back is ordinary text."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str | None:
        longest: str | None = None
        for which, stop in enumerate(self._stops):
            state, failures = self._states[which], self._failures[which]
            while state and stop[state] != char:
                state = failures[state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                longest = stop if longest is None or len(stop) > len(longest) else longest
                state = failures[state - 1]
            self._states[which] = state
        return longest

    def _hit(self, seen: str, matched: str) -> StopHit:
        self._held = ""
        return StopHit(seen if self._keep else seen[: len(seen) - len(matched)], matched)

    def _release(self, buffer: str) -> str:
        hold = 0 if self._keep else max(self._states)
        self._held = buffer[len(buffer) - hold :]
        return buffer[: len(buffer) - hold]


def _failure_table(pattern: str) -> list[int]:
    """Per position: length of the longest proper prefix that is also a suffix there."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return table
