"""Text of a deployment file as words of bash."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from vivace.errors import CannotStart
from vivace.terminal import printable

UNKNOWN = re.compile(r"<(\$\w+|\$\{\w+(?::-)?\})>")
"""a variable whose value only the machine knows, as in `/opt/bin:<$PATH>`"""
WIDTH = 100


def quote_known(text: str) -> str:
    """One word. What is no visible character is written as bytes, which bash reads back: nothing
    steers a terminal. Raises CannotStart for what no argument can hold."""
    if text.isprintable():
        return shlex.quote(text)
    if "\0" in text:
        raise CannotStart(f"{printable(text[:80])}: no argument or variable can hold a NUL")
    return "$'" + "".join(map(escape_character, text)) + "'"


def escape_character(character: str) -> str:
    if character.isprintable():
        return "\\" + character if character in "\\'" else character
    named = {"\n": "\\n", "\t": "\\t"}.get(character)
    raw = character.encode("utf-8", "surrogatepass")
    return named or "".join(f"\\x{byte:02x}" for byte in raw)


def quote(text: str, known: Callable[[str], str] = quote_known) -> str:
    """One word. Only variables left to the machine are expanded; `known` quotes the rest."""
    pieces = UNKNOWN.split(text)
    if len(pieces) == 1:
        return known(text)
    return "".join(
        f'"{piece}"' if index % 2 else known(piece) for index, piece in enumerate(pieces) if piece
    )


def command_lines(
    words: Sequence[str], indent: str, known: Callable[[str], str] = quote_known
) -> str:
    """A command over several lines, flags together with their values."""
    lines, line = list[str](), indent
    for group in group_words([quote(word, known) for word in words]):
        if len(line) + len(group) > WIDTH and line.strip():
            lines.append(line.rstrip() + " \\")
            line = indent + "    "
        line += group + " "
    return "\n".join([*lines, line.rstrip()])


def group_words(words: Sequence[str]) -> list[str]:
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return [" ".join(group) for group in groups]
