"""The command line: an argparse parser made from the declared options."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from vivace.config.config import ConfigError, all_options
from vivace.config.newer import NEWER
from vivace.config.option import Option
from vivace.config.values import checked, nearest

OWN = ("-h", "--help", "--config")
NUMBER = re.compile(r"-(\d|\.\d)")


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def values_of(words: Sequence[str], program: str) -> dict[str, Any]:
    """Option name -> value for what was typed. --help prints and exits."""
    refuse_unknown(words)
    found, stray = build_parser(program).parse_known_args(words)
    if stray:
        raise ConfigError(f"{stray[0]!r} belongs to no flag")
    known = {option.name: option for option in all_options()}
    return {name: checked(known[name], value) for name, value in vars(found).items()}


def build_parser(program: str) -> Parser:
    """Options grouped by subsystem; only what is typed appears in the result."""
    parser = Parser(
        prog=program,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="Serve a model over HTTP.",
        epilog="What works on which device: vivace flags",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file with flag names as keys; typed flags win"
    )
    groups: dict[str, Any] = {}
    for option in all_options():
        if option.slice_name not in groups:
            groups[option.slice_name] = parser.add_argument_group(option.slice_name)
        add(groups[option.slice_name], option)
    return parser


def add(group: Any, option: Option) -> None:
    """Values arrive as text and are converted by `checked`, as those of files are."""
    shapes: dict[str, Any] = {"metavar": "VALUE"}
    if option.shape == "bool":
        shapes = {"nargs": "?", "const": True, "metavar": "true|false"}
    elif option.shape.startswith("list of "):
        shapes = {"nargs": "+", "metavar": "VALUE"}
    text = option.help + (f" One of: {', '.join(option.choices)}." if option.choices else "")
    group.add_argument(*option.flags, dest=option.name, help=text.replace("%", "%%"), **shapes)


def refuse_unknown(words: Sequence[str]) -> None:
    """ConfigError naming every word that looks like a flag and is none."""
    known = {*OWN, *(flag for option in all_options() for flag in option.flags)}
    wrong = [flag for flag in flags_among(words) if flag not in known]
    if wrong:
        raise ConfigError("; ".join(unknown_text(flag) for flag in dict.fromkeys(wrong)))


def flags_among(words: Sequence[str]) -> list[str]:
    """The words that argparse would take for flags, without `=value`."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1]
    return [flag for flag in flags if " " not in flag and not NUMBER.match(flag)]


def unknown_text(flag: str) -> str:
    if flag in NEWER:
        return f"{flag} is a flag of SGLang 0.5.23 that this version does not have; leave it out"
    near = nearest(flag, (name for option in all_options() for name in option.flags))
    return f"{flag} is no flag{near or '; `vivace flags` lists them all'}"


def given_twice(words: Sequence[str]) -> list[str]:
    """Flags given more than once, under any of their names: the last one wins, and is told."""
    names = {flag: option.flag for option in all_options() for flag in option.flags}
    counts = Counter(names[flag] for flag in flags_among(words) if flag in names)
    return [
        f"{flag} is given {count} times; the last one counts"
        for flag, count in counts.items()
        if count > 1
    ]
