"""What a chat needs of whoever answers, and the settings it passes on."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol

from vivace.arguments import finite_number, whole_number

Message = dict[str, str]
Settings = Mapping[str, float]
"""by the names of `SETTINGS`; what is absent is left to the model's defaults"""


@dataclass(frozen=True)
class Range:
    """What a setting may be. `steps`: whole numbers only; `open_low`: more than `low`."""

    low: float
    high: float = math.inf
    steps: bool = False
    open_low: bool = False
    default: str = "the model's"
    """in words"""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.open_low and value == self.low)

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "any whole number"
        least = f"more than {self.low:g}" if self.open_low else f"at least {self.low:g}"
        return least if self.high == math.inf else f"{least} and at most {self.high:g}"


SETTINGS = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, open_low=True),
    "top_k": Range(-1, steps=True),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(0, 2, open_low=True),
    "max_tokens": Range(0, steps=True),
    "seed": Range(-math.inf, steps=True, default="another for each answer"),
}
NO_LIMIT = 0
"""a `max_tokens` that leaves an answer the rest of the context"""


class ChatError(Exception):
    """The answer could not be had; the text is for the user."""


@dataclass(frozen=True, kw_only=True)
class TextChunk:
    """A part of an answer: new text, and how many tokens the answer has so far. `cut`: it ended
    because `max_tokens` or the context was used up."""

    text: str
    tokens: int
    cut: bool = False


Answering = Generator[TextChunk, None, None]


class Backend(Protocol):
    """Answers a conversation chunk by chunk. Closing the generator stops the generation."""

    def answer(self, messages: list[Message], settings: Settings) -> Answering: ...

    def describe(self) -> str: ...


def read_setting(name: str, text: str) -> float:
    """The value of a setting as it was typed. Raises ChatError."""
    allowed = SETTINGS[name]
    try:
        value = whole_number(text) if allowed.steps else finite_number(text)
    except ValueError:
        wanted = "a whole number" if allowed.steps else "a number"
        raise ChatError(f"{name}: {text!r} is not {wanted}") from None
    if value not in allowed:
        raise ChatError(f"{name}: {text} is not possible; it is {allowed}")
    return value
