"""argparse as every command uses it: what is wrong is one line, with the nearest name there is.
Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from vivace.errors import CANNOT_START, nearest
from vivace.terminal import print_wrapped

if TYPE_CHECKING:
    from pathlib import Path

FEW = 8
"""choices that are listed whole"""
MAX_DIGITS = 4000
"""of a number that Python reads"""
MISSING = "the following arguments are required"
"""argparse's words"""


INTEGER = re.compile(r"[+-]?[0-9]+")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def whole_number(text: str) -> int:
    """In ASCII digits; int() takes other scripts' and `1_000` too. Raises ValueError."""
    if not INTEGER.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a whole number")
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:20]}.. is too large: {len(text)} digits")
    return int(text)


def number_between(low: int, high: int) -> Callable[[str], int]:
    """The type of a whole number that has to lie there."""

    def convert(text: str) -> int:
        value = whole_number(text)
        if low <= value <= high:
            return value
        limit = f"below {low}" if value < low else f"above {high}"
        raise argparse.ArgumentTypeError(f"{text} is {limit}")

    return convert


def finite_number(text: str) -> float:
    """In ASCII digits, with an exponent or without. Raises ValueError."""
    if not DECIMAL.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a number")
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text!r} is too large")
    return value


class ArgumentParser(argparse.ArgumentParser):
    """A misspelled flag or value is answered with what is close to it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("type", int, whole_number)
        self.register("type", float, finite_number)
        self._words: list[str] = []

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - it has overloads
        found, stray = self.parse_known_args(args, namespace)
        if stray:
            self.refuse(stray)
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - it has overloads
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._words, namespace)

    def refuse(self, stray: Sequence[str], more: Iterable[str] = ()) -> NoReturn:
        """Exit because of words that no argument takes; `more`: flags that someone else takes."""
        flags = [word.partition("=")[0] for word in stray if word.startswith("-")]
        if not flags:
            self.error(f"unexpected argument {stray[0]!r}")
        known = [*self.flags(), *more]
        self.error("; ".join(f"unknown flag {flag}{nearest(flag, known)}" for flag in flags))

    def flags(self) -> Iterator[str]:
        """Those of subcommands too."""
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser.flags()

    def error(self, message: str) -> NoReturn:
        if message.startswith(MISSING):  # which may be there, misspelled
            known = [*self.flags()]
            words = [word.partition("=")[0] for word in self._words if word.startswith("--")]
            told = [(word, nearest(word, known)) for word in words if word not in known]
            message = "; ".join(
                [*(f"unknown flag {one}{near}" for one, near in told if near), message]
            )
        print_wrapped(f"{self.prog}: {message} (see `{self.prog} --help`)")
        self.exit(CANNOT_START)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """A type's own words, where argparse has the name of a function."""
        convert = self._registry_get("type", action.type, action.type)
        try:
            return convert(arg_string)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        near = nearest(str(value), names, 0.7) if len(names) > FEW else ""
        near = near or f"; choose from {', '.join(names)}"
        raise argparse.ArgumentError(action, f"there is no {value!r}{near}")


def named_path(text: str) -> Path:
    """The type of a file or folder. An empty name, as of a variable that is not set, would be the
    current folder."""
    from pathlib import Path  # 5 ms that `vivace check` does not need

    if not text:
        raise argparse.ArgumentTypeError("the name is empty; `.` is the current folder")
    return Path(text)


def http_address(text: str) -> str:
    """The type of a server's address, as every HTTP client can send it: a bare HOST:PORT is taken
    as http, a path is percent-encoded."""
    from urllib.parse import quote, urlsplit  # 5 ms that `vivace check` does not need

    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host = (parts.hostname or "").encode("idna")  # as a look-up of the name would
        if (
            parts.scheme in ("http", "https")
            and host
            and all(b"!" <= bytes([byte]) <= b"~" for byte in host)
            and parts.port != 0
            and not (parts.query or parts.fragment)
        ):
            return parts._replace(path=quote(parts.path, safe="/%:@!$&'()*+,;=~")).geturl()
    except ValueError:  # a port that is none, brackets that do not close, a label without letters
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an address like http://127.0.0.1:30000")


def utf8_text(text: str) -> str:
    """The type of a text that a model reads. Where the locale is not UTF-8 its bytes may be."""
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that the locale has no characters for
        try:
            return os.fsencode(text).decode()
        except UnicodeError:
            raise argparse.ArgumentTypeError("is not UTF-8 text") from None
    return text
