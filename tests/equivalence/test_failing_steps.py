"""Steps that fail at any place are computed again: states, vectors and tokens are those of a
request alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import Answer, Engine, Setting, build_config, toy_requests, write_toy_llama
from test_kept_otherwise import toy_worker

from vivace.worker.worker import Worker

KINDS = ("recurrent", "attention", "window")
BUSY = Setting(
    batch=5, chunk=16, radix="on", depth=1, page=4, windows="own", state_interval=8,
    operations="torch",
)  # fmt: skip
PLACES: dict[str, Callable[[Worker], tuple[Any, str]]] = {
    "rows have joined": lambda worker: (worker._rows, "apply"),
    "inputs": lambda worker: (worker._inputs, "gather"),
    "model": lambda worker: (worker._runner, "forward"),
    "heads": lambda worker: (worker._heads, "read"),
    "rows are recorded": lambda worker: (worker._rows, "record"),
    "states are saved": lambda worker: (worker._kv, "copy_slots"),
    "tokens that must follow": lambda worker: (worker._rows, "extend"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("failing") / "toy")


def build(folder: Path, setting: Setting) -> tuple[Engine, Worker]:
    config = build_config(folder, setting)
    worker = toy_worker(KINDS, setting, config.memory.max_total_tokens or 0)
    return Engine(worker, config, setting), worker


@cache
def plain_answers(folder: Path) -> dict[str, Answer]:
    alone = replace(BUSY, batch=1, chunk=-1, radix="off")
    return build(folder, alone)[0].run(toy_requests(16, stream=False))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("late", [False, True], ids=["before", "behind"])
def test_a_step_that_fails_is_computed_again(
    folder: Path, place: str, late: bool, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a while, so nobody is to blame."""
    engine, worker = build(folder, replace(BUSY, depth=depth))
    owner, name = PLACES[place](worker)
    call, calls = getattr(owner, name), iter(range(1_000_000))

    def failing(*args: Any, **options: Any) -> Any:
        fails = next(calls) % 29 in (3, 17)
        if fails and not late:
            raise MemoryError("no memory in this step")
        result = call(*args, **options)
        if fails:
            raise MemoryError("no memory behind this step")
        return result

    monkeypatch.setattr(owner, name, failing)
    answers = engine.run(toy_requests(16, stream=False), arrivals=random.Random(1))
    assert next(calls) > 3
    assert engine.audit() == []
    assert engine.held_tokens() == 0
    for rid, plain in plain_answers(folder).items():
        assert (answers[rid].tokens, answers[rid].numbers) == (plain.tokens, plain.numbers)
