"""Command line, YAML file or keyword arguments -> Options."""

from __future__ import annotations

import argparse
import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from vivace.config.config import ConfigError, Options, all_options, with_values
from vivace.config.environment import read_environment
from vivace.config.option import Option, finite_number, number_reader, whole_number
from vivace.config.secret import Secret
from vivace.config.sglang import VALUES, explained

MAX_FILE = 1 << 20


def parse(
    argv: Sequence[str], environ: Mapping[str, str], *, program: str = "vivace serve"
) -> Options:
    """What a user typed. Raises ConfigError for anything wrong; --help prints and exits."""
    typed, notices = explained(list(argv))
    file_tokens, typed = config_file(typed)
    from_file, more = explained(file_tokens)
    values = parsed_values([*from_file, *typed], program)
    notices += [*more, *twice(typed), *value_notices(values)]
    honoured, about_environment = read_environment(environ)
    options = with_values(Options(), values)
    return with_notices(options, [*notices, *about_environment], honoured)


def from_arguments(**arguments: Any) -> Options:
    """Options from keyword arguments named like the flags (the offline API)."""
    known = {option.name: option for option in all_options()}
    aliases = {
        flag[2:].replace("-", "_"): option.name
        for option in known.values()
        for flag in option.flags
    }
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in aliases:
            raise ConfigError(f"{name} is no argument{nearest(name, aliases)}")
        if value is not None:
            values[aliases[name]] = checked(known[aliases[name]], value)
    return with_values(Options(), values)


def with_notices(options: Options, notices: list[str], honoured: dict[str, str]) -> Options:
    import dataclasses

    return dataclasses.replace(options, notices=tuple(notices), environment=honoured)


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def build_parser(program: str) -> Parser:
    """A parser made from the declared options, grouped by subsystem."""
    parser = Parser(
        prog=program,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        epilog="What works on which device: vivace flags",
    )
    parser.add_argument("--config", help="YAML file of flags; typed ones win")
    groups: dict[str, Any] = {}
    for option in all_options():
        group = groups.get(option.slice_name)
        if group is None:
            group = groups[option.slice_name] = parser.add_argument_group(option.slice_name)
        add(group, option)
    return parser


def add(group: Any, option: Option) -> None:
    help_text = option.help.replace("%", "%%")
    if option.shape == "bool":
        group.add_argument(*option.flags, dest=option.name, action="store_true", help=help_text)
        return
    many = option.shape.startswith("list of ")
    group.add_argument(
        *option.flags,
        dest=option.name,
        nargs="+" if many else None,
        metavar=option.name.upper()[:24] if not option.choices else "CHOICE",
        help=help_text,
    )


def parsed_values(tokens: list[str], program: str) -> dict[str, Any]:
    parser = build_parser(program)
    found, unknown = parser.parse_known_args(tokens)
    if unknown:
        raise ConfigError(unknown_text(unknown[0]))
    known = {option.name: option for option in all_options()}
    return {
        name: checked(known[name], value) for name, value in vars(found).items() if name in known
    }


def unknown_text(token: str) -> str:
    flag = token.split("=", 1)[0]
    if not flag.startswith("-"):
        return f"{token!r} belongs to no flag"
    known = {name: name for option in all_options() for name in option.flags}
    return f"{flag} is no flag{nearest(flag, known)}; `vivace flags` lists them all"


def nearest(name: str, known: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def checked(option: Option, value: Any) -> Any:
    """A value in the option's type and among its choices; ConfigError names the flag."""
    try:
        result = converted(option, value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{option.flag}: {error}") from None
    if option.choices and str(result) not in option.choices:
        close = nearest(str(result), {choice: choice for choice in option.choices})
        raise ConfigError(
            f"{option.flag}: {result!r} is not one of {', '.join(option.choices)}{close}"
        )
    return result


def converted(option: Option, value: Any) -> Any:
    if option.secret:
        return value if isinstance(value, Secret) else Secret(str(value))
    if option.shape == "json":
        return json.loads(value) if isinstance(value, str) else value
    if option.shape == "bool":
        return bool_value(value)
    if option.shape.startswith("list of "):
        reader = number_reader(option.shape.removeprefix("list of "))
        pieces = value if isinstance(value, list | tuple) else [value]
        return tuple(reader(str(piece)) for piece in pieces)
    if option.shape == "int":
        return value if type(value) is int else whole_number(str(value))
    return finite_number(str(value)) if option.shape == "float" else str(value)


def bool_value(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def twice(tokens: list[str]) -> list[str]:
    """Flags given more than once: the last one wins, which should not stay unnoticed."""
    names = {flag: option.flag for option in all_options() for flag in option.flags}
    flags = [token.split("=", 1)[0] for token in tokens if token.startswith("--")]
    counts = Counter(names.get(flag, flag) for flag in flags)
    return [
        f"{flag} is given {count} times; the last one counts"
        for flag, count in counts.items()
        if count > 1
    ]


def value_notices(values: dict[str, Any]) -> list[str]:
    return [
        f"--{name.replace('_', '-')} {value} {why}"
        for (name, value), why in VALUES.items()
        if values.get(name) == value
    ]


def config_file(tokens: list[str]) -> tuple[list[str], list[str]]:
    """(tokens of the --config file, the typed tokens without --config)."""
    rest: list[str] = []
    path: str | None = None
    waiting = iter(tokens)
    for token in waiting:
        if token == "--config":
            path = next(waiting, None)
            if path is None:
                raise ConfigError("--config needs a file")
        elif token.startswith("--config="):
            path = token.removeprefix("--config=")
        else:
            rest.append(token)
    return (file_tokens(Path(path)) if path else []), rest


def file_tokens(path: Path) -> list[str]:
    """A YAML mapping of flag names as command-line tokens."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"--config {path}: larger than {MAX_FILE >> 20} MiB")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"--config {path}: a mapping of flag names is wanted")
    return [token for key, value in content.items() for token in tokens_of(path, key, value)]


def tokens_of(path: Path, key: str, value: Any) -> list[str]:
    flag = "--" + key.lstrip("-").replace("_", "-")
    known = {name for option in all_options() for name in option.flags}
    if flag not in known and flag not in explained([flag])[0]:
        raise ConfigError(f"--config {path}: {unknown_text(flag)}")
    if flag not in known and not explained([flag])[1]:
        raise ConfigError(f"--config {path}: {unknown_text(flag)}")
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, list):
        return [flag, *map(str, value)]
    if value is None:
        return []
    return [f"{flag}={json.dumps(value) if isinstance(value, dict) else value}"]
