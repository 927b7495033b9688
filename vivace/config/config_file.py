"""`--config FILE`: a YAML mapping of flag names, turned into the words one would have typed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from vivace.config.command_line import unknown_text
from vivace.config.config import all_options
from vivace.config.errors import ConfigError
from vivace.config.option import Option
from vivace.config.sglang import RETIRED
from vivace.files import read_file

MAX_FILE = 1 << 20
"""bytes"""


def without_config(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """(the last --config file, the other words)."""
    rest: list[str] = []
    path: str | None = None
    waiting = iter(words)
    for word in waiting:
        if word == "--config":
            path = next(waiting, "")
        elif word.startswith("--config="):
            path = word.removeprefix("--config=")
        else:
            rest.append(word)
    if path is None:
        return None, rest
    if not path or path.startswith("-"):
        raise ConfigError("--config needs a file")
    return Path(path), rest


def read_flags(path: Path) -> list[str]:
    """The file's settings as command-line words. Raises ConfigError naming the file."""
    return [word for key, value in read(path).items() for word in to_flags(path, key, value)]


def read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_file(path, MAX_FILE).decode())
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    settings = cast("dict[Any, Any]", content) if isinstance(content, dict) else None
    if settings is None or not all(isinstance(key, str) for key in settings):
        raise ConfigError(f"--config {path}: must be a mapping of flag names to values")
    return settings


def to_flags(path: Path, key: str, value: Any) -> list[str]:
    flag = "--" + key.lstrip("-").replace("_", "-")
    option = {name: option for option in all_options() for name in option.flags}.get(flag)
    if option is None and flag not in RETIRED:
        raise ConfigError(f"--config {path}: {unknown_text(flag)}")
    if value is None:
        return []
    if option is None or option.shape == "bool":
        return switch_flags(option, flag, value)
    if option.shape == "json":
        return [f"{flag}={value if isinstance(value, str) else json.dumps(value)}"]
    if isinstance(value, list) and option.shape.startswith("list of "):
        return [flag, *map(str, cast("list[Any]", value))]
    if isinstance(value, list | dict):
        raise ConfigError(f"--config {path}: {flag}: must be one value, got {value!r}")
    return [f"{flag}={value}"]


def switch_flags(option: Option | None, flag: str, value: Any) -> list[str]:
    """A switch may be false, which for a retired flag means that it is not given."""
    if option is None:
        bare = value if isinstance(value, bool) else None
        return [] if bare is False else [flag] if bare else [f"{flag}={value}"]
    return [f"{flag}={str(value).lower()}"]
