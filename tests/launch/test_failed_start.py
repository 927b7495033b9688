"""A start of several ranks that fails: all end at once, and hear why."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from toy_config import LLAMA

from vivace.config.config import Config
from vivace.config.parsing import parse
from vivace.engine.executor import ExecutorDied, StepWorker
from vivace.engine.process_group import RankDeath
from vivace.launch import process_group
from vivace.launch.configure import configure
from vivace.launch.process_group import Broadcasts, start_process_group
from vivace.platforms.rendezvous import Rendezvous


class LoadingRank:
    """A rank that loads, and looks at nothing meanwhile."""

    name = "rank 1"
    address = "", 0

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def arrive(self) -> None: ...

    def begin(self, addresses: Sequence[object]) -> None: ...

    def death(self, wait: float = 0.0) -> RankDeath | None:
        return None

    def wake_with(self, ring: Callable[[], None]) -> None: ...

    def kill(self) -> None:
        self._said.append("killed")

    def close(self) -> None:
        self._said.append("awaited")


def test_ranks_that_load_end_with_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told, and killed, before anybody waits for one of them."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_key_value_heads": 4}))
    words = ["--model-path", str(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init"]
    config, said = configure(parse([*words, "--tp-size", "4"], {})), list[str]()
    started: list[Rendezvous] = []

    def spawn(config: Config, seats: Sequence[object], *_: object) -> list[LoadingRank]:
        return [LoadingRank(said) for _ in seats]

    def close(self: Broadcasts, cause: str = "") -> None:
        said.append(cause)

    def build(found: Rendezvous, report: object) -> StepWorker:
        started.append(found)
        raise OSError("model-00007-of-00009 is damaged")

    monkeypatch.setattr(process_group, "spawn_ranks", spawn)
    monkeypatch.setattr(process_group, "EXIT_SECONDS", 0.0)
    monkeypatch.setattr(Broadcasts, "close", close)
    with pytest.raises(ExecutorDied, match="damaged") as died:
        start_process_group(config, build, lambda worker: worker, lambda stage, part: None)
    assert said == [str(died.value), *["killed"] * 3, *["awaited"] * 3]
    assert started[0].memory.abandoned, "who waits in a collective wakes"
