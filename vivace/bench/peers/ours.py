"""The server of this package, with drafts and without."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import vivace
from vivace.bench.peers.peer import LOCALHOST, Run


class VivacePeer:
    """`python -m vivace.launch_server`, spoken to in its native protocol."""

    backend = "vivace"
    model = "vivace"
    connection_per_request = False
    ready_seconds = 120.0

    def __init__(self, flags: Sequence[str] = (), name: str = "vivace") -> None:
        self.name = name
        self._flags = list(flags)

    def setup(self, directory: Path, run: Run) -> None:
        """Nothing to do: this package is installed, or this code would not run."""

    def missing(self, directory: Path) -> str:
        return ""

    def command(self, directory: Path, port: int) -> list[str]:
        module = [sys.executable, "-m", "vivace.launch_server"]
        return [*module, "--host", LOCALHOST, "--port", str(port), *self._flags]

    def version(self, directory: Path) -> str:
        return vivace.__version__


NGRAM_FLAGS = ("--speculative-algorithm", "NGRAM")
OURS: dict[str, tuple[str, ...]] = {"vivace": (), "vivace-ngram": NGRAM_FLAGS}
"""name -> its flags"""
