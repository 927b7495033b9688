"""Inputs of custom tools: text, which models write as the one argument of a function."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from vivace.parsers.json_values import whole_characters

INPUT = "input"
"""what models know the argument by"""
FENCE, FENCE_END = "```\n", "\n```"
"""stand around an input that is no string of JSON, since a grammar says how it is written"""
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_SQUEEZED = f'{{"{INPUT}":"'
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*"
)
_PART = re.compile(
    r"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?))?"
)
"""of an escape that may become whole"""
_DECODER = json.JSONDecoder(strict=False)  # with control characters that nobody has escaped


class InputReader:
    """The text in `{"input": "..."}`, as that comes; arguments that are anything else are the input
    themselves."""

    def __init__(self) -> None:
        self._before: list[str] = []
        """what came before the string"""
        self._squeezed = ""
        self._held = ""
        self._read: Callable[[str], str] = self._begin

    def push(self, text: str) -> str:
        """What comes next of the arguments -> what is new of the input."""
        return self._read(text)

    def _begin(self, text: str) -> str:
        self._before.append(text)
        self._squeezed += "".join(text.split())
        if self._squeezed != _SQUEEZED and _SQUEEZED.startswith(self._squeezed):
            return ""  # of white space there may be any amount
        whole, self._before = "".join(self._before), []
        if (found := _BEGIN.match(whole)) is None:
            self._read = self._other
            return whole
        self._read = self._inside
        return self._inside(whole[found.end() :])

    def _other(self, text: str) -> str:
        return text

    def _over(self, text: str) -> str:
        return ""

    def _inside(self, text: str) -> str:
        """Escapes that are not whole yet wait; what is none stands for itself."""
        held, at, parts = self._held + text, 0, list[str]()
        while True:
            found = _WHOLE.match(held, at)
            end = found.end() if found else at
            parts.append(unescaped(held[at:end]))
            at = end
            if held.startswith('"', at):
                self._read = self._over
            elif _PART.fullmatch(held, at) is None and at < len(held):
                parts.append(held[at])
                at += 1
                continue
            self._held = held[at:]
            return "".join(parts)


def unescaped(text: str) -> str:
    """What stands in a string of JSON means."""
    return whole_characters(str(_DECODER.decode(f'"{text}"'))) if "\\" in text else text
