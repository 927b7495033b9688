"""The command line: an argparse parser made from the declared options."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from vivace.config.config import all_options, options_by_name
from vivace.config.errors import ConfigError, as_typed
from vivace.config.help import help_text
from vivace.config.known_flags import whose_flag
from vivace.config.option import DEFAULT_PLATFORM, Option
from vivace.config.sglang import RETIRED
from vivace.config.values import parse_value
from vivace.errors import nearest

HELP = frozenset({"-h", "--help"})
HELP_ALL = "--help-all"
OWN = (*HELP, HELP_ALL, "--config")
NUMBER = re.compile(r"-(\d|\.\d)")


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse_values(words: Sequence[str], program: str) -> dict[str, Any]:
    """Option name -> value for what was typed. --help and --help-all print and exit."""
    if HELP_ALL in words or HELP.intersection(words):
        print(help_text(program, DEFAULT_PLATFORM, everything=HELP_ALL in words), end="")
        raise SystemExit(0)
    refuse_unknown(words)
    found, stray = build_parser(program).parse_known_args(words)
    if stray:
        raise ConfigError(
            f"unexpected argument {stray[0]!r}; the model is given with --model-path {stray[0]}"
        )
    return read_values(vars(found), given_names(words))


def read_values(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """By option name, as they were given and as they are meant. `names`: `Options.names`"""
    known = options_by_name()
    try:
        return {name: parse_value(known[name], value) for name, value in values.items()}
    except ConfigError as error:
        raise ConfigError(as_typed(str(error), names)) from None


def build_parser(program: str) -> Parser:
    """Only what is typed appears in the result."""
    parser = Parser(
        prog=program,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    parser.add_argument("--config")
    for option in all_options():
        add(parser, option)
    return parser


def add(parser: Parser, option: Option) -> None:
    """Values arrive as text and are converted by `parse_value`, as those of files are."""
    shapes: dict[str, Any] = {}
    if option.shape == "bool":
        shapes = {"nargs": "?", "const": True}
    elif option.shape.startswith("list of "):
        shapes = {"nargs": "+"}
    parser.add_argument(*option.flags, dest=option.name, **shapes)


def refuse_unknown(words: Sequence[str]) -> None:
    """ConfigError naming every word that looks like a flag and is none."""
    known = {*OWN, *(flag for option in all_options() for flag in option.flags)}
    wrong = [flag for flag in flags_among(words) if flag not in known]
    if wrong:
        raise ConfigError("; ".join(unknown_text(flag) for flag in dict.fromkeys(wrong)))


def flags_among(words: Iterable[str]) -> list[str]:
    """The words that argparse would take for flags, without `=value`."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1]
    return [flag for flag in flags if " " not in flag and not NUMBER.match(flag)]


def unknown_text(flag: str) -> str:
    if known := whose_flag(flag):
        return known
    if begun := begun_options(flag):
        return f"{flag} may be {' or '.join(option.flag for option in begun)}: write it out"
    dashed = flag.replace("_", "-")
    near = nearest(dashed, (*OWN, *(name for option in all_options() for name in option.flags)))
    return f"unknown flag {flag}{near or ' (see `vivace flags`)'}"


def begun_options(flag: str) -> list[Option]:
    """Those with a name that begins so."""
    if len(flag) < 3 or not flag.startswith("--"):
        return []
    return [
        option for option in all_options() if any(name.startswith(flag) for name in option.flags)
    ]


def whole_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words, with flags written out that only one option's name begins like, as SGLang's
    argparse reads them; and a line for each."""
    known = {*OWN, *RETIRED, *(flag for option in all_options() for flag in option.flags)}
    result: list[str] = []
    notices: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        begun = [] if flag in known or whose_flag(flag) else begun_options(flag)
        if len(begun) == 1:
            whole = next(name for name in begun[0].flags if name.startswith(flag))
            notices.append(f"{flag} is read as {whole}: another release may have two such flags")
            word = f"{whole}{equals}{value}"
        result.append(word)
    return result, notices


def given_names(words: Iterable[str]) -> dict[str, str]:
    """Every name of a flag -> the last one among these words."""
    names = {flag: option.flags for option in all_options() for flag in option.flags}
    given = {names[flag]: flag for flag in flags_among(words) if flag in names}
    return {name: flag for flags, flag in given.items() for name in flags}


def given_twice(words: Sequence[str]) -> list[str]:
    """Flags given more than once, under any of their names: the last one wins, and is told."""
    names = {flag: option.flag for option in all_options() for flag in option.flags}
    counts = Counter(names[flag] for flag in flags_among(words) if flag in names)
    return [
        f"{flag} is given {count} times; the last one counts"
        for flag, count in counts.items()
        if count > 1
    ]
