"""Command line, YAML file or keyword arguments -> Options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vivace.config.command_line import (
    given_names,
    given_twice,
    parse_values,
    read_values,
    unknown_text,
    whole_flags,
)
from vivace.config.config import Options, all_options, options_by_name, with_values
from vivace.config.config_file import read_flags, without_config
from vivace.config.environment import read_environment
from vivace.config.errors import ConfigError
from vivace.config.keys import with_cluster_key, with_keys
from vivace.config.known_flags import ELSEWHERE
from vivace.config.option import Option
from vivace.config.process_environment import KEYS_OF_THE_SERVER, process_environment
from vivace.config.releases.tables import takers
from vivace.config.sglang import RETIRED, renamed_flags, replace_retired, today_values
from vivace.config.tool_servers import with_tool_servers
from vivace.errors import nearest
from vivace.protocol.messages import Rewrite


def parse(
    argv: Sequence[str], environ: Mapping[str, str], *, program: str = "vivace serve"
) -> Options:
    """What a user typed. Raises ConfigError for anything wrong; --help prints and exits."""
    path, typed = without_config(argv)
    typed, short = whole_flags(typed)
    from_file, notes = file_values(path, program)
    words, rewrites = replace_retired(typed)
    notices = (*notes.notices, *short, *renamed_flags(typed), *given_twice(words))
    values = {**from_file, **parse_values(words, program)}
    names = {**notes.names, **given_names(words)}
    notes = ParseNotes((*notes.rewrites, *rewrites), notices, names)
    return options_from(values, environ, notes)


def from_arguments(**arguments: Any) -> Options:
    """Options from keyword arguments named like the flags (the offline API); None is "not given".

    Reads the process's environment, as a server does. Raises ConfigError.
    """
    options = options_by_argument()
    values: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for name, value in arguments.items():
        if name not in options:
            raise ConfigError(unknown_argument(name, options))
        if value is not None:
            option = options[name]
            if (other := typed.setdefault(option.name, name)) != name:
                raise ConfigError(f"{other} and {name} are the same option; give one of them")
            values[option.name] = value
    names = given_names("--" + name.replace("_", "-") for name in typed.values())
    values = read_values(values, names)
    return options_from(values, process_environment(), ParseNotes(names=names))


@cache
def options_by_argument() -> dict[str, Option]:
    """By the names of their fields and of their flags."""
    flags = {
        flag[2:].replace("-", "_"): option for option in all_options() for flag in option.flags
    }
    return {**flags, **options_by_name()}


def unknown_argument(name: str, known: Iterable[str]) -> str:
    flag = "--" + name.replace("_", "-")
    if flag in RETIRED:
        today = " ".join(RETIRED[flag].today)
        return f"{name} is retired ({RETIRED[flag].why}); {'use ' + today if today else 'drop it'}"
    if takers(flag) or flag in ELSEWHERE:
        return unknown_text(flag)
    return f"{name} is no argument{nearest(name, known)}"


@dataclasses.dataclass(frozen=True)
class ParseNotes:
    """What reading replaced, lines to show, and `Options.names`."""

    rewrites: tuple[Rewrite, ...] = ()
    notices: tuple[str, ...] = ()
    names: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


def file_values(path: Path | None, program: str) -> tuple[dict[str, Any], ParseNotes]:
    """What the --config file sets; errors name the file."""
    if path is None:
        return {}, ParseNotes()
    words, rewrites = replace_retired(read_flags(path))
    try:
        return parse_values(words, program), ParseNotes(tuple(rewrites), (), given_names(words))
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from None


def options_from(values: dict[str, Any], environ: Mapping[str, str], notes: ParseNotes) -> Options:
    values, replaced = today_values(values)
    honored, about_variables = read_environment(environ)
    options = with_values(Options(), values)
    return dataclasses.replace(
        options,
        http=with_tool_servers(with_keys(options.http, honored)),
        parallel=with_cluster_key(options.parallel, honored),
        rewrites=(*notes.rewrites, *replaced),
        notices=(*notes.notices, *about_variables),
        given=tuple(values),
        names=notes.names,
        environment={name: honored[name] for name in honored if name not in KEYS_OF_THE_SERVER},
    )
