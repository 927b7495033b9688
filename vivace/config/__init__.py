"""What was asked -> what will run. Names are loaded when they are first used: the tables of flags
are large, and not every command needs them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vivace.config.config import Config, ConfigError, Options, Rewrite
    from vivace.config.parsing import from_arguments, parse
    from vivace.config.resolution import resolve
    from vivace.config.serialize import decode, encode, public

HOMES = {
    "Config": "config",
    "ConfigError": "errors",
    "Options": "config",
    "Rewrite": "config",
    "decode": "serialize",
    "encode": "serialize",
    "from_arguments": "parsing",
    "parse": "parsing",
    "public": "serialize",
    "resolve": "resolution",
}
"""name -> the module that has it"""

__all__ = [
    "Config",
    "ConfigError",
    "Options",
    "Rewrite",
    "decode",
    "encode",
    "from_arguments",
    "parse",
    "public",
    "resolve",
]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
