"""OpenVINO GenAI's continuous batching, behind the small HTTP front beside this file.

The model is converted once for each kind of weights. The converter asks for torchvision, which
would bring a CUDA build of torch: it is installed without what it declares.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from vivace.bench.environment import usable_cores
from vivace.bench.peers.export import MODEL_FOLDER, export_once
from vivace.bench.peers.peer import Run, command_output

Weights = Literal["fp16", "int8", "int4"]

TORCH = "torch==2.13.0"
ENGINE = (
    "openvino==2026.4.1",
    "openvino-genai==2026.4.1.0",
    "openvino-tokenizers==2026.4.1.0",
    "aiohttp",
)
CONVERTER = ("optimum==2.3.0", "optimum-intel==2.2.0")
CONVERTER_NEEDS = ("transformers==5.5.4", "nncf==3.4.0", "onnx", "setuptools", "requests")
INT4 = ("--group-size", "64", "--ratio", "1.0")
"""576 inputs are no multiple of the usual group of 128"""
SERVER = Path(__file__).with_name("openvino_server.py")


class OpenVinoPeer:
    """The embedded model with weights of one kind; `precision` of the arithmetic: bf16, f32, or
    auto for what OpenVINO chooses on this CPU."""

    backend = "vllm"
    model = "smollm2"
    connection_per_request = False
    ready_seconds = 120.0

    def __init__(self, weights: Weights, flags: Sequence[str] = ()) -> None:
        self.name = "openvino" if weights == "fp16" else f"openvino-{weights}"
        self._weights = weights
        self._precision = flags[0] if flags else "auto"

    def setup(self, directory: Path, run: Run) -> None:
        environment = directory / "ov"
        python = str(environment / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet"]
        if not Path(python).exists():
            run([sys.executable, "-m", "venv", str(environment)])
        run([*pip, TORCH, *ENGINE])
        run([*pip, "--no-deps", *CONVERTER])
        run([*pip, TORCH, *CONVERTER_NEEDS])
        export_once(directory)
        run(
            [
                *(str(environment / "bin" / "optimum-cli"), "export", "openvino"),
                *("--model", str(directory / MODEL_FOLDER)),
                *("--task", "text-generation-with-past", "--weight-format", self._weights),
                *(INT4 if self._weights == "int4" else ()),
                str(self._folder(directory)),
            ]
        )

    def missing(self, directory: Path) -> str:
        if (self._folder(directory) / "openvino_model.xml").is_file():
            return ""
        return f"{self.name} is not installed under {directory}"

    def command(self, directory: Path, port: int) -> list[str]:
        return [
            *(str(directory / "ov" / "bin" / "python"), str(SERVER)),
            *(str(self._folder(directory)), str(port), str(usable_cores()), self._precision),
        ]

    def version(self, directory: Path) -> str:
        code = "import importlib.metadata as m; print(m.version('openvino-genai'))"
        return command_output([str(directory / "ov" / "bin" / "python"), "-c", code]) or "unknown"

    def _folder(self, directory: Path) -> Path:
        return directory / f"ov-{self._weights}"
