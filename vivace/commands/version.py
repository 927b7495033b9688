"""`vivace version`: versions of vivace, python and torch."""

from __future__ import annotations

import sys
from importlib import metadata

import vivace
from vivace.arguments import ArgumentParser


def main(words: list[str]) -> int:
    ArgumentParser(
        prog="vivace version", description="Versions of vivace, python and torch."
    ).parse_args(words)
    print(f"vivace {vivace.__version__}")
    print(f"python {sys.version.split()[0]}")
    print(f"torch {installed_version('torch')}")
    return 0


def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
