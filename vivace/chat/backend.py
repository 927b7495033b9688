"""What a chat needs of whoever answers, and the settings it passes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Message = dict[str, str]
Settings = Mapping[str, float]
"""by the names of `SETTINGS`; what is absent is left to the model's defaults"""

SETTINGS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "max_tokens": int,
    "seed": int,
}
NO_LIMIT = 0
"""a `max_tokens` that leaves an answer the rest of the context"""


class ChatError(Exception):
    """The answer could not be had; the text is for the user."""


@dataclass(frozen=True, kw_only=True)
class Bit:
    """A part of an answer: new text, and how many tokens the answer has so far. `cut`: it ended
    because `max_tokens` or the context was used up."""

    text: str
    tokens: int
    cut: bool = False


class Backend(Protocol):
    """Answers a conversation bit by bit. Closing the iterator stops the generation."""

    def answer(self, messages: list[Message], settings: Settings) -> Iterator[Bit]: ...

    def describe(self) -> str: ...


def read_setting(name: str, text: str) -> float:
    """The value of a setting as it was typed. Raises ChatError."""
    kind = SETTINGS[name]
    try:
        value = kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ChatError(f"{name}: {text!r} is not {wanted}") from None
    if value != value or (value < 0 and name not in ("top_k", "seed")):
        raise ChatError(f"{name}: {text} is not possible")
    return value
