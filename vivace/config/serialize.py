"""Config as JSON for child processes and, without secrets, for /server_info."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec

from vivace.config.config import Config, all_options, option_value
from vivace.config.secret import Secret


def encode(config: Config) -> bytes:
    """JSON for a private pipe: secrets are in clear.

    As Python writes it: the files of a model hold numbers and text that strict JSON does not.
    """
    return json.dumps(msgspec.to_builtins(config, enc_hook=plain)).encode()


def decode(data: bytes) -> Config:
    return msgspec.convert(json.loads(data), type=Config, dec_hook=rich)


def plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError(f"{type(value).__name__} does not travel")


def rich(kind: type[Any], value: Any) -> Any:
    if kind in (Path, Secret):
        return kind(value)
    raise TypeError(f"{kind.__name__} does not travel")


def public(config: Config) -> dict[str, Any]:
    """Every option by name, for anyone with a key. Secret ones are left out."""
    found = {
        option.name: option_value(config, option) for option in all_options() if not option.secret
    }
    values = {
        **found,
        "embedded_model": config.source.embedded,
        "depth": config.depth,
        "rewrites": [msgspec.to_builtins(rewrite) for rewrite in config.rewrites],
        "notices": list(config.notices),
    }
    return {name: in_unicode(value) for name, value in values.items()}


def in_unicode(value: Any) -> Any:
    """Text that every answer can hold. What is no UTF-8 on the command line, where Python is told
    that the locale is another, or in a file's name, has a lone surrogate for each such byte."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:  # half a character, from JSON
            return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {
            in_unicode(key): in_unicode(one) for key, one in cast("dict[Any, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [in_unicode(one) for one in cast("list[Any]", value)]
    return value
