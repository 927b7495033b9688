"""Text -> blocks -> lines of a terminal."""

from __future__ import annotations

import itertools
import re
from typing import Protocol

from markdown_it import MarkdownIt
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

CODE_THEME = "ansi_dark"
LONGEST_CONTEXT = 2000
"""characters of a block's first lines that are said again where it was cut"""
CODES = re.compile(r"\x1b\[[0-9;]*m")


class Layout(Protocol):
    """How text is shown. A block is a piece of it that does not change any more once the next one
    has begun."""

    gap: bool
    """an empty line stands between blocks"""

    def blocks(self, text: str) -> list[str]: ...

    def lines(self, block: str) -> list[str]:
        """The block in lines no wider than the terminal, with its escape codes."""
        ...

    def cut(self, block: str) -> tuple[str, str]:
        """A block that has become too long, in two, where it hurts least; the second part is
        shorter than the block."""
        ...


class MarkdownLayout:
    """Blocks are Markdown's: paragraphs, lists, tables, code. HTML is shown as it came."""

    gap = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])

    def blocks(self, text: str) -> list[str]:
        tokens = self._parser.parse(text)
        begins = [token.map[0] for token in tokens if token.level == 0 and token.map]
        begins = sorted(set(begins))[1:]
        lines = split_lines(text)
        edges = [0, *begins, len(lines)]
        found = ["".join(lines[a:b]) for a, b in itertools.pairwise(edges)]
        return [block for block in found if block]

    def lines(self, block: str) -> list[str]:
        markdown = Markdown(block, code_theme=CODE_THEME, hyperlinks=False)
        markdown.parsed = self._parser.parse(block)
        lines = render_lines(self._console, markdown)
        filled = [place for place, line in enumerate(lines) if CODES.sub("", line).strip()]
        return lines[filled[0] : filled[-1] + 1] if filled else []

    def cut(self, block: str) -> tuple[str, str]:
        """Code goes on as code, and a table has its head again."""
        first, rest = cut_text(block)
        kinds = [token.type for token in self._parser.parse(first) if token.level == 0]
        repeated = {"fence": 1, "table_open": 2}.get(kinds[0], 0) if kinds else 0
        head = "".join(split_lines(first)[:repeated])
        return first, (head if len(head) <= LONGEST_CONTEXT else "") + rest


class PlainLayout:
    """Blocks are lines; words that do not fit go into the next one."""

    gap = False

    def __init__(self, console: Console) -> None:
        self._console = console

    def blocks(self, text: str) -> list[str]:
        return split_lines(text)

    def lines(self, block: str) -> list[str]:
        return render_lines(self._console, Text(block.rstrip("\n")))

    def cut(self, block: str) -> tuple[str, str]:
        return cut_text(block)


def render_lines(console: Console, what: Markdown | Text) -> list[str]:
    """The lines that rich makes of it. The last column stays free: some terminals go on in the
    next line as soon as it is used."""
    with console.capture() as captured:
        console.print(what, width=max(console.width - 1, 10), highlight=False)
    return [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]


def split_lines(text: str) -> list[str]:
    """Lines with their ends, of those that end like Markdown's."""
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + [rest] * bool(rest)


def cut_text(text: str) -> tuple[str, str]:
    """At the end of its last line, or of its last word, but not before its middle."""
    middle = len(text) // 2
    end = text.rfind("\n", middle) + 1 or text.rfind(" ", middle) + 1 or len(text)
    return text[:end], text[end:]
