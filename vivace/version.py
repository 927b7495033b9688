"""Vivace's version, where everything may read it: also pyproject.toml, and a tree that was never
installed."""

from __future__ import annotations

__version__ = "0.1.0"
