"""The version in answers, from the installed distribution."""

from __future__ import annotations

from importlib.metadata import version


def server_version() -> str:
    """Like `vivace.__version__`, without importing what `vivace` can start."""
    return version("vivace")
