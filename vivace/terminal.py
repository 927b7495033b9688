"""Standard streams, and long lines: broken between words for a terminal, whole for a pipe or a
file (one message, one line: for grep)."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 20
WIDEST = 1000
"""columns; wider ones that a variable claims are a mistake"""
UNBROKEN = 10_000
"""columns of what is no terminal"""


def open_closed_streams() -> None:
    """A standard stream that is closed (`>&-`, some service managers) becomes /dev/null: otherwise
    a socket gets its number, with what others print there, and Python has None in its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


class OutlivesReader(io.FileIO):
    """A descriptor for output that is written on into nothing when its reader has gone (`| head`):
    what a command does beside printing, and its exit code, do not depend on who reads."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(memoryview(data).cast("B"))


def outlive_reader() -> None:
    """Standard output of this process goes on without its reader."""
    stdout = sys.stdout
    if stdout is not sys.__stdout__ or not isinstance(stdout, io.TextIOWrapper) or stdout.isatty():
        return
    stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(OutlivesReader(stdout.fileno(), "w", closefd=False)),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )


def forget_wrong_sizes(environment: MutableMapping[str, str]) -> None:
    """COLUMNS and LINES of no terminal (0, from some CI systems): rich would fold everything to
    nothing, or fill lines up to them. The terminal itself is asked then."""
    for name, least in (("COLUMNS", NARROWEST), ("LINES", 2)):
        text = environment.get(name, "")
        known = text.isascii() and text.isdigit() and len(text) <= 9
        if not (known and least <= int(text) <= WIDEST):
            environment.pop(name, None)


def terminal_width(stream: TextIO) -> int | None:
    """The width of a terminal; None of anything else."""
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    if not columns:
        import shutil  # loading it takes milliseconds

        columns = shutil.get_terminal_size().columns
    return max(columns, NARROWEST)


def wrap_line(line: str, columns: int | None, indent: str = "    ") -> list[str]:
    """One line as several that fit; those behind the first begin with `indent`. A word that is
    too long for a line has one of its own, and the terminal breaks it."""
    if columns is None or len(line) <= columns:
        return [line]
    import textwrap

    return textwrap.wrap(
        line,
        columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    ) or [line]


def wrap_text(text: str, columns: int | None, indent: str = "    ") -> str:
    """Every line of a text wrapped; a line that is indented goes on below its first word."""
    if columns is None or len(text) <= columns:
        return text
    found: list[str] = []
    for line in text.split("\n"):
        own = line[: len(line) - len(line.lstrip())]
        found += wrap_line(line, columns, own or indent)
    return "\n".join(found)


def fill_command(parts: Iterable[str], columns: int) -> list[str]:
    """A command of parts that stay whole, as lines a shell reads as one. Where a part ends with a
    comma, its quotes go on in the next one."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) + len(" \\") <= columns:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return [line if line.endswith(",") else f"{line} \\" for line in lines[:-1]] + lines[-1:]


def printable(text: str) -> str:
    """Text of strangers (names of files, values in them) on one line: what is no visible character
    is written as Python writes it, so that nothing steers a terminal, begins a line that a CI
    system obeys, or cannot be encoded."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else escape(c) for c in text)


def escape(character: str) -> str:
    """As Python writes it; a byte that was no UTF-8, of a file's name, as Python and shells do."""
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(character)[1:-1]


def escape_what_has_no_code(error: UnicodeError) -> tuple[str, int]:
    """For `codecs.register_error`: what a stream's encoding has no characters for, escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(escape, error.object[error.start : error.end])), error.end


MAX_SHOWN = 4000
"""characters of one line that are shown to a person"""


def shorten(text: str) -> str:
    """Without the middle of what is too long to be read."""
    half = MAX_SHOWN // 2
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:half]} .. ({len(text) - 2 * half} characters left out) .. {text[-half:]}"


def shown(text: str) -> str:
    """`printable`, shortened."""
    return printable(shorten(text))


def print_wrapped(text: str, stream: TextIO | None = None, indent: str = "    ") -> None:
    """Print to standard error, or to another stream."""
    out = stream or sys.stderr
    print(wrap_text(text, terminal_width(out), indent), file=out)


def make_console(stream: TextIO) -> Console:
    """Rich's console, which breaks nothing where no terminal is."""
    from rich.console import Console

    return Console(file=stream, highlight=False, width=None if stream.isatty() else UNBROKEN)
