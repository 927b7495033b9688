"""What a probe may look at, so that tests can give it a made-up machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from vivace.checkpoint.source import SourceError, embedded_file
from vivace.doctor.port import is_vivace, port_owner
from vivace.platforms.cpu.library import best_isa

TIMEOUT_SECONDS = 10
"""that a program may take to answer"""


@dataclass(frozen=True)
class System:
    """`root` is the file system's; `environment` the process's variables."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)

    def read(self, path: str) -> str | None:
        """The content of a small file without blanks around it; None where there is none."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return None

    def find(self, pattern: str) -> list[Path]:
        return sorted(self.root.glob(pattern.lstrip("/")))

    def write(self, path: str, content: str) -> None:
        """Raises OSError."""
        (self.root / path.lstrip("/")).write_text(content)

    def run(self, words: Sequence[str]) -> str | None:
        """What a program prints; None where it is missing, fails or does not answer."""
        if shutil.which(words[0]) is None:
            return None
        try:
            done = subprocess.run(
                list(words), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    def version(self, package: str) -> str | None:
        """Of an installed Python package, without importing it."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def addresses(self, name: str) -> list[str]:
        """What a host name resolves to; nothing where it does not."""
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return sorted({str(each[4][0]) for each in found})

    def hostname(self) -> str:
        return socket.gethostname()

    def port_owner(self, port: int) -> str:
        """`process 4711 (python -m http.server)`, or "" when that cannot be found out."""
        return port_owner(port)

    def is_vivace(self, port: int) -> bool:
        """Whether a server of Vivace answers at the port."""
        return is_vivace(port)

    def isa(self) -> str:
        """The instruction set that the native kernels run with. Raises NoKernels,
        StaleKernels."""
        return best_isa()

    def embedded_model(self) -> Path | None:
        """The embedded model's file, where it is installed."""
        try:
            return embedded_file()
        except SourceError:
            return None

    def listens(self, port: int) -> bool:
        """Whether something has the port already."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                return True
        return False
