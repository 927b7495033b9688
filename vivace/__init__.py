"""Vivace: an engine for serving large language models. Importing it loads nothing, so that Ctrl-C
at a command's first moment meets `__main__`, which is ready for it."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it
if TYPE_CHECKING:
    from vivace.api import Engine
    from vivace.config.errors import ConfigError
    from vivace.errors import CannotStart
    from vivace.frontend.errors import BadRequest, EngineUnavailable, NotSupported
    from vivace.version import __version__

HOMES = {
    "BadRequest": "frontend.errors",
    "CannotStart": "errors",
    "ConfigError": "config.errors",
    "Engine": "api",
    "EngineUnavailable": "frontend.errors",
    "NotSupported": "frontend.errors",
    "__version__": "version",
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
