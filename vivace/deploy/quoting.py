"""Text of a deployment file as words of bash."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

UNKNOWN = re.compile(r"<(\$\w+|\$\{\w+(?::-)?\})>")
"""a variable whose value only the machine knows, as in `/opt/bin:<$PATH>`"""
WIDTH = 100


def quote(text: str) -> str:
    """One word. Only variables left to the machine are expanded."""
    pieces = UNKNOWN.split(text)
    if len(pieces) == 1:
        return shlex.quote(text)
    return "".join(
        f'"{piece}"' if index % 2 else shlex.quote(piece)
        for index, piece in enumerate(pieces)
        if piece
    )


def command_lines(words: Sequence[str], indent: str) -> str:
    """A command over several lines, flags together with their values."""
    lines, line = list[str](), indent
    for group in group_words([quote(word) for word in words]):
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
