"""Server flags in a benchmark's command line: its own are taken out, the rest are the server's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vivace.config.process_environment import process_environment

if TYPE_CHECKING:
    from vivace.config.config import Config


def resolved_config(words: Sequence[str], program: str) -> Config:
    """The configuration a server with these flags would have. ConfigError, SourceError."""
    from vivace.config.parsing import parse
    from vivace.launch.serve import configure

    return configure(parse(words, process_environment(), program=program))


def engine_arguments(words: Sequence[str], program: str) -> dict[str, Any]:
    """Keyword arguments of `vivace.Engine` for the given server flags, typed and checked."""
    from vivace.config.config import all_options, value_of
    from vivace.config.parsing import parse

    options = parse(words, process_environment(), program=program)
    pairs = ((option, value_of(options, option)) for option in all_options())
    return {option.name: value for option, value in pairs if value != option.default}


def split_flags(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """(the benchmark's settings, the words that are left for the server)."""
    return parser.parse_known_args(argv)
