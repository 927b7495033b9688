"""Vivace: an engine for serving large language models. Importing it loads nothing heavy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from vivace.version import __version__

if TYPE_CHECKING:
    from vivace.api import Engine
    from vivace.config.errors import ConfigError
    from vivace.errors import CannotStart
    from vivace.frontend.errors import BadRequest, EngineUnavailable, NotSupported

HOMES = {
    "BadRequest": "frontend.errors",
    "CannotStart": "errors",
    "ConfigError": "config.errors",
    "Engine": "api",
    "EngineUnavailable": "frontend.errors",
    "NotSupported": "frontend.errors",
}
"""name -> the module that has it"""

__all__ = [
    "BadRequest",
    "CannotStart",
    "ConfigError",
    "Engine",
    "EngineUnavailable",
    "NotSupported",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module 'vivace' has no attribute {name!r}")
    return getattr(import_module(f"vivace.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
