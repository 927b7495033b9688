"""A peer that computes nothing (`vivace.bench.fake_server`): the reference for the protocol."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vivace.bench.peers.peer import Run


class ScriptedPeer:
    """Answers at a fixed pace, as SGLang (native) or as an OpenAI server."""

    model = "scripted"
    ready_seconds = 30.0

    def __init__(
        self,
        name: str = "scripted",
        *,
        gap: float = 0.0,
        backend: str = "openai",
        connection_per_request: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.backend = backend
        self.connection_per_request = connection_per_request
        self._flags = ["--gap", str(gap), *flags]

    def setup(self, directory: Path, run: Run) -> None:
        """Proves that set-up commands run."""
        run([sys.executable, "-c", ""])

    def missing(self, directory: Path) -> str:
        return ""

    def command(self, directory: Path, port: int) -> list[str]:
        module = [sys.executable, "-m", "vivace.bench.fake_server"]
        return [*module, "--port", str(port), *self._flags]

    def version(self, directory: Path) -> str:
        return "scripted"
