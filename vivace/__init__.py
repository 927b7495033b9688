"""Vivace: an engine for serving large language models. Importing it loads nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vivace.api import Engine

__all__ = ["Engine", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Engine":
        from vivace.api import Engine

        return Engine
    raise AttributeError(f"module 'vivace' has no attribute {name!r}")
