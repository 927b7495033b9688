"""Server flags in a benchmark's command line: its own are taken out, the rest are the server's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from vivace.config.process_environment import process_environment

if TYPE_CHECKING:
    from vivace.config import Config


def resolved_config(words: Sequence[str], program: str) -> Config:
    """The configuration a server with these flags would have. ConfigError, SourceError."""
    from vivace.launch import configure

    return configure(words, process_environment(), program=program)


def engine_arguments(words: Sequence[str], program: str) -> dict[str, Any]:
    """Keyword arguments of `vivace.Engine` for the given server flags, typed and checked."""
    from vivace.config import parse

    options = parse(words, process_environment(), program=program)
    unset = parse([], process_environment(), program=program)
    arguments: dict[str, Any] = {}
    for group in fields(options):
        given, default = getattr(options, group.name), getattr(unset, group.name)
        for option in fields(given):
            value = getattr(given, option.name)
            if value != getattr(default, option.name):
                arguments[option.name] = value
    return arguments


def split_flags(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """(the benchmark's settings, the words that are left for the server)."""
    args, rest = parser.parse_known_args(argv)
    return args, rest
