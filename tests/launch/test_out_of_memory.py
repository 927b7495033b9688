"""A process that finds no memory ends in a line that says what to change, by what it was doing."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from vivace.config.config import Config
from vivace.errors import NO_MEMORY
from vivace.launch.out_of_memory import GIB, memory_advice
from vivace.supervisor import child as child_module
from vivace.supervisor.child import Child, Role

WEIGHTS = ("4.00 GiB were free before the start", "files take 0.50 GiB", "smaller model")
POOL = ("--mem-fraction-static (now 0.8)", "--max-total-tokens")
STEPS = ("--chunked-prefill-size (now 2048)", "--max-running-requests")
CASES = [
    ("engine", "", False, WEIGHTS),
    ("engine", "Loading PyTorch", False, WEIGHTS),
    ("engine", "Loading kernels", False, WEIGHTS),
    ("engine", "Loading weights", False, WEIGHTS),
    ("engine", "Sizing the KV pool", False, POOL),
    ("engine", "Capturing decode steps", False, STEPS),
    ("engine", "Capturing decode steps", True, POOL + STEPS),
    ("frontend", "", True, ("bodies",)),
]
ALL = {word for case in CASES for word in case[3]}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    weights = tmp_path / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(GIB // 2)
    found = SimpleNamespace(
        source=SimpleNamespace(files=(weights, tmp_path / "gone")),
        platform=SimpleNamespace(available_bytes=4 * GIB),
        memory=SimpleNamespace(mem_fraction_static=0.8, max_total_tokens=None),
        schedule=SimpleNamespace(chunked_prefill_size=2048, max_running_requests=None),
    )
    return cast(Config, found)


def dead_child(role: Role, code: str, failure: str = "") -> Child:
    process = subprocess.Popen([sys.executable, "-S", "-c", code])
    control = cast(child_module.MessageSocket, None)
    return Child(
        role=role, process=process, control=control, out_of_memory_kills=3, failure=failure
    )


@pytest.mark.parametrize(("role", "stage", "serving", "words"), CASES)
@pytest.mark.parametrize("how", ["the kernel", *NO_MEMORY])
def test_advice_follows_the_stage(
    role: Role,
    stage: str,
    serving: bool,
    words: tuple[str, ...],
    how: str,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_module, "out_of_memory_kills", lambda: 4)
    if how == "the kernel":
        child = dead_child(role, "import os; os.kill(os.getpid(), 9)")
    else:
        child = dead_child(role, "exit(1)", f"RuntimeError: {how} of 9 bytes")
    child.stage, child.serving = stage, serving
    told = child.cause(partial(memory_advice, config))
    assert ("out-of-memory killer" in told) is (how == "the kernel")
    assert {word for word in ALL if word in told} == set(words), told
    assert "\n" not in told
    assert ("ulimit -u" in told) is ("thread" in how)


@pytest.mark.parametrize("code", ["exit(7)", "import os; os.kill(os.getpid(), 9)"])
def test_other_deaths_have_no_such_advice(
    code: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "out_of_memory_kills", lambda: 3)
    told = dead_child("engine", code, "ValueError: x").cause(partial(memory_advice, config))
    assert "memory" not in told
