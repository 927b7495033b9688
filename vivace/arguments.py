"""argparse as every command uses it: what is wrong is one line, with the nearest name there is."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from vivace.errors import CANNOT_START, nearest
from vivace.terminal import print_wrapped


class ArgumentParser(argparse.ArgumentParser):
    """A misspelled flag or value is answered with what is close to it."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - it has overloads
        found, stray = self.parse_known_args(args, namespace)
        if stray:
            self.refuse(stray)
        return found

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
        print_wrapped(f"{self.prog}: {message} (see `{self.prog} --help`)")
        self.exit(CANNOT_START)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        near = nearest(str(value), names) or f"; choose from {', '.join(names)}"
        raise argparse.ArgumentError(action, f"there is no {value!r}{near}")
