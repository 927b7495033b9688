"""Inputs of custom tools: text, which models write as the one argument of a function."""

from __future__ import annotations

import re

from vivace.parsers.json_values import NotJson, parse, whole_characters

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
_LONGEST_ESCAPE = 12


class InputReader:
    """The text in `{"input": "..."}`, as that comes; arguments that are anything else are the input
    themselves."""

    def __init__(self) -> None:
        self._held = ""
        self._read = self._begin

    def push(self, text: str) -> str:
        """What is new of the input."""
        self._held += text
        return self._read()

    def _begin(self) -> str:
        if (found := _BEGIN.match(self._held)) is not None:
            self._held = self._held[found.end() :]
            self._read = self._inside
        elif _SQUEEZED.startswith("".join(self._held.split())):
            return ""
        else:
            self._read = self._other
        return self._read()

    def _other(self) -> str:
        text, self._held = self._held, ""
        return text

    def _over(self) -> str:
        return ""

    def _inside(self) -> str:
        """Escapes that are not whole yet wait; what is none stands for itself."""
        parts: list[str] = []
        while True:
            found = _WHOLE.match(self._held)
            whole, self._held = found[0] if found else "", self._held[found.end() if found else 0 :]
            parts.append(unescaped(whole))
            if self._held.startswith('"'):
                self._read = self._over
            elif len(self._held) >= _LONGEST_ESCAPE:
                parts.append(self._held[0])
                self._held = self._held[1:]
                continue
            return "".join(parts)


def unescaped(text: str) -> str:
    """What stands in a string of JSON means."""
    try:
        return whole_characters(str(parse(f'"{text}"')))
    except NotJson:  # control characters that nobody has escaped
        return text
