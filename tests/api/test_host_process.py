"""An engine inside of a program leaves alone what is the program's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vivace import Engine
from vivace.errors import CannotStart
from vivace.platforms.cpu import platform as cpu
from vivace.platforms.platform import PlatformSettings, detect


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
def test_torch_and_malloc_stay_as_they_are(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []
    monkeypatch.setattr(cpu, "keep_freed_blocks", lambda: changed.append("malloc"))
    engine = Engine(disable_cpu_kernels=not kernels, cpu_threads=1, max_total_tokens=512)
    try:
        assert engine.generate("a", {"temperature": 0, "max_new_tokens": 2})
        assert torch.get_num_threads() == 2
        assert not changed
    finally:
        engine.shutdown()


def test_a_process_of_the_engine_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []
    monkeypatch.setattr(cpu, "keep_freed_blocks", lambda: changed.append("malloc"))
    cpu.cpu_platform(detect("cpu"), PlatformSettings(threads=1, owns_process=True))
    assert changed == ["malloc"] and torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"dp_size": 3}, "--data-parallel-size"),
        (
            {"pp_size": 2, "nnodes": 2, "node_rank": 1, "dist_init_addr": "127.0.0.1:5000"},
            "--nnodes",
        ),
        ({"tp_size": 2, "nnodes": 2}, "--nnodes"),
    ],
)
def test_there_is_one_engine_on_one_machine(flags: dict[str, Any], named: str) -> None:
    """Said at once, before what several machines would need."""
    with pytest.raises(CannotStart, match=named) as raised:
        Engine(**flags)
    assert "vivace.Engine" in str(raised.value)


def test_an_option_is_given_by_one_of_its_names() -> None:
    with pytest.raises(CannotStart, match="tensor_parallel_size"):
        Engine(tp_size=2, tensor_parallel_size=4)
