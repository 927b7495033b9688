"""Small surroundings to resolve options against."""

from __future__ import annotations

from pathlib import Path

from toy_config import LLAMA

from vivace.checkpoint.source import ModelSource
from vivace.config.config import Config, Options
from vivace.config.parsing import from_arguments, parse
from vivace.config.resolution import resolve
from vivace.models.facts import ModelFacts, read_facts
from vivace.platforms.platform import PlatformFacts

SOURCE = ModelSource(
    path=Path("/models/toy"),
    format="safetensors",
    files=(Path("/models/toy/model.safetensors"),),
    config=LLAMA,
    tokenizer_path=Path("/models/toy"),
)
PLATFORM = PlatformFacts(
    name="cpu",
    device_name="a CPU",
    memory_bytes=8 << 30,
    available_bytes=6 << 30,
    cores=4,
    dtypes=("float32", "bfloat16"),
    page_sizes=(16, 1),
    cpu_kernels=True,
    on_cores=True,
    overlap=False,
    chunked_prefill_size=1024,
    max_running_requests=256,
)


def facts() -> ModelFacts:
    return read_facts(SOURCE)


def resolved(*argv: str, environ: dict[str, str] | None = None) -> Config:
    return settled(parse(argv, environ or {}))


def resolved_arguments(**arguments: object) -> Config:
    return settled(from_arguments(**arguments))


def settled(options: Options) -> Config:
    return resolve(options, SOURCE, facts(), PLATFORM)
