"""Which of several ends a text has: the first that is complete. Ends are text with special tokens
in it, that a lexer sees one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vivace.grammar.vocabulary import SpecialWords


@dataclass(frozen=True)
class TextEnd:
    """`head`: its text up to the first special token, which `tail` begins with."""

    head: str
    tail: str

    @property
    def whole(self) -> str:
        return self.head + self.tail


def first_ends(ends: Sequence[str], special: SpecialWords) -> dict[str, list[str]]:
    """Those that may be the first one, each with texts that a text and its head must not end with:
    there another one is complete, or will be sooner."""
    split = {end: _split(end, special) for end in dict.fromkeys(ends)}
    if not any(one.tail for one in split.values()):
        return {end: [] for end in split}  # the lexer finds the shortest
    found: dict[str, list[str]] = {}
    for end, one in split.items():
        others = [other for other in split.values() if other is not one]
        if not any(other.whole in one.whole[:-1] for other in others):
            sooner = [other for other in others if one.tail.startswith(other.tail)]
            found[end] = [
                other.head
                for other in sooner
                if other.tail != one.tail and other.head.endswith(one.head)
            ]
    return found


def _split(end: str, special: SpecialWords) -> TextEnd:
    """Special tokens become two surrogates, which no text has."""
    parts = special.split(end)
    words = [part if isinstance(part, str) else _surrogates(part) for part in parts]
    count = 1 if parts and isinstance(parts[0], str) else 0
    return TextEnd("".join(words[:count]), "".join(words[count:]))


def _surrogates(token: int) -> str:
    return chr(0xD800 + (token >> 10)) + chr(0xDC00 + (token & 1023))
