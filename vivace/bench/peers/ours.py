"""The server of this package: with drafts and without, and with the checkpoint of the peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import vivace
from vivace.bench.peers.export import MODEL_FOLDER, export_once, has_export
from vivace.bench.peers.peer import LOCALHOST, Run


@dataclass(frozen=True, kw_only=True)
class OurServer:
    """One way to start it."""

    flags: tuple[str, ...] = ()
    exported: bool = False
    """with the checkpoint that peers read, in BF16, in place of the embedded file"""


OURS = {
    "vivace": OurServer(),
    "vivace-bf16": OurServer(exported=True),
    "vivace-ngram": OurServer(flags=("--speculative-algorithm", "NGRAM")),
}


class VivacePeer:
    """`python -m vivace.launch_server`, spoken to in its native protocol."""

    backend = "vivace"
    model = "vivace"
    connection_per_request = False
    ready_seconds = 120.0

    def __init__(self, flags: Sequence[str] = (), name: str = "vivace") -> None:
        """`name`: one of OURS"""
        self.name = name
        self._exported = OURS[name].exported
        self._flags = [*OURS[name].flags, *flags]

    def setup(self, directory: Path, run: Run) -> None:
        """This package is installed, or this code would not run; its checkpoint may not be."""
        if self._exported:
            export_once(directory)

    def missing(self, directory: Path) -> str:
        if not self._exported or has_export(directory):
            return ""
        return f"the model {directory / MODEL_FOLDER} is not there"

    def command(self, directory: Path, port: int) -> list[str]:
        model = ["--model-path", str(directory / MODEL_FOLDER)] if self._exported else []
        module = [sys.executable, "-m", "vivace.launch_server"]
        return [*module, "--host", LOCALHOST, "--port", str(port), *model, *self._flags]

    def version(self, directory: Path) -> str:
        return vivace.__version__
