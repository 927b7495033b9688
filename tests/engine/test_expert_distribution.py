"""Counts of experts: records, and moves between steps."""

from __future__ import annotations

import json
import logging
import resource
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vivace.config.expert_balance import ExpertDevices
from vivace.engine.expert_distribution import (
    DistributionSettings,
    ExpertDistribution,
    NoExpertDistribution,
)
from vivace.engine.expert_records import RecordedLayers, RecordedStep, SummedRecord
from vivace.protocol.messages import RecordExperts
from vivace.protocol.step import StepResult
from vivace.protocol.workers import MoveExperts, WorkerState

ROOM = ExpertDevices(slots=6, devices=2)
TRIVIAL = (0, 1, 2, 3, 0, 1)


class Ranks:
    """An executor that is only asked to move; `refusal`: what it says."""

    def __init__(self, refusal: str = "") -> None:
        self.moves: list[MoveExperts] = []
        self.refusal = refusal

    def control(self, command: Any) -> list[WorkerState]:
        self.moves.append(command)
        return [WorkerState(), WorkerState(rank=1, refused=self.refusal)]


def made(ranks: Any, **how: Any) -> ExpertDistribution:
    settings = {"layers": 3, "experts": 4, "placed": {0: TRIVIAL, 2: TRIVIAL}, "room": ROOM, **how}
    return ExpertDistribution(DistributionSettings(**settings), ranks, clock=lambda: 7.25)


def step(number: int, *rows: list[int]) -> StepResult:
    counts = np.array(rows, np.int64).tobytes()
    return StepResult(number=number, advanced=[], tokens=[], expert_counts=counts)


BUSY = [90, 1, 1, 1, 0, 1]
EVEN = [2, 2, 2, 2, 2, 2]


def test_busy_experts_get_copies_on_the_other_device() -> None:
    ranks = Ranks()
    experts = made(ranks, rebalance_steps=2)
    experts.commit(step(0, BUSY, EVEN))
    assert not experts.due
    experts.commit(step(1, BUSY, EVEN))
    assert experts.due
    experts.rebalance()
    assert not experts.due
    assert all(len(move.layers) == 1 for move in ranks.moves), (
        "weights of one layer are there twice"
    )
    placed = {move.layers[0]: move.placed[0] for move in ranks.moves}
    assert sorted(placed) and set(placed) <= {0, 2} and placed[0].count(0) == 3
    assert all(set(row) == {0, 1, 2, 3} for row in placed.values())
    assert {0 in placed[0][:3], 0 in placed[0][3:]} == {True}


def test_layers_move_some_at_a_time_with_steps_between() -> None:
    ranks = Ranks()
    experts = made(ranks, rebalance_steps=1, chunk=1)
    experts.commit(step(0, BUSY, BUSY))
    experts.rebalance()
    assert [move.layers for move in ranks.moves] == [[0]] and not experts.due
    experts.commit(step(1, EVEN, EVEN))
    assert experts.due
    experts.rebalance()
    assert [move.layers for move in ranks.moves] == [[0], [2]]


def test_counts_of_moved_slots_are_those_of_their_experts(tmp_path: Path) -> None:
    ranks = Ranks()
    experts = made(ranks, rebalance_steps=1, buffer=1, folder=str(tmp_path))
    experts.commit(step(0, BUSY, BUSY))
    experts.rebalance()
    placed = ranks.moves[0].placed[0]
    assert experts.execute(RecordExperts("start"))
    experts.commit(step(1, [1, 2, 3, 4, 5, 6], EVEN))
    wanted = [sum(n for n, e in zip(range(1, 7), placed, strict=True) if e == k) for k in range(4)]
    assert dumped(experts)["logical_count"][0] == wanted


def dumped(experts: ExpertDistribution) -> dict[str, Any]:
    return json.loads(Path(experts.execute(RecordExperts("dump"))).read_text())


@pytest.mark.parametrize(("threshold", "moves"), [(0.3, 0), (1.0, 2)])
def test_devices_that_are_used_well_keep_their_experts(threshold: float, moves: int) -> None:
    ranks = Ranks()
    experts = made(ranks, rebalance_steps=1, threshold=threshold)
    experts.commit(step(0, BUSY, BUSY))
    experts.rebalance()
    assert len(ranks.moves) == moves


def test_ranks_that_refuse_are_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks("model.safetensors: gone")
    experts = made(ranks, rebalance_steps=1)
    experts.commit(step(0, BUSY, BUSY))
    experts.rebalance()
    assert "model.safetensors: gone" in caplog.text
    experts.commit(step(1, BUSY, BUSY))
    assert not experts.due and len(ranks.moves) == 1


def test_a_record_has_the_last_steps_as_sums(tmp_path: Path) -> None:
    experts = made(Ranks(), buffer=2, folder=str(tmp_path))
    experts.commit(step(0, BUSY, BUSY))
    experts.execute(RecordExperts("start"))
    for number in (1, 2, 3):
        experts.commit(step(number, [number, 0, 0, 0, 1, 0], EVEN))
    experts.execute(RecordExperts("stop"))
    experts.commit(step(4, BUSY, BUSY))
    name = experts.execute(RecordExperts("dump"))
    found = json.loads(Path(name).read_text())
    assert Path(name).parent == tmp_path and name.endswith(".json")
    assert found["logical_count"] == [[7, 0, 0, 0], [0] * 4, [8, 8, 4, 4]]
    assert 0.5 <= found["average_utilization_rate_over_window"] <= 1


def test_a_record_of_every_step(tmp_path: Path) -> None:
    experts = made(Ranks(), mode="per_pass", folder=str(tmp_path))
    experts.execute(RecordExperts("start"))
    experts.commit(step(5, BUSY, EVEN))
    found = json.loads(Path(experts.execute(RecordExperts("dump"))).read_text())
    assert found["last_physical_to_logical_map"] == [list(TRIVIAL)] * 3
    (record,) = found["records"]
    assert record["forward_pass_id"] == 5
    assert record["global_physical_count"] == [BUSY, [0] * 6, EVEN]
    for number in range(3):
        experts.commit(step(number, EVEN, BUSY))
    assert [one["forward_pass_id"] for one in dumped(experts)["records"]] == [0, 1, 2]
    assert dumped(experts)["records"] == []


def test_sums_over_all_steps_keep_no_step() -> None:
    record = SummedRecord(RecordedLayers(58, range(58)), 256, -1)
    tracemalloc.start()
    try:
        for number in range(100):
            counts = np.ones((58, 256), np.int64)
            record.add(RecordedStep(number, counts, counts, 1.0))
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 4 * counts.nbytes
    assert json.loads(b"".join(record.write({})))["logical_count"][0] == [100] * 256


def test_a_record_that_has_no_room_is_kept(tmp_path: Path) -> None:
    experts = made(Ranks(), mode="per_pass", folder=str(tmp_path))
    experts.execute(RecordExperts("start"))
    for number in range(50):
        experts.commit(step(number, BUSY, EVEN))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            experts.execute(RecordExperts("dump"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.iterdir())
    assert len(dumped(experts)["records"]) == 50


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="recorder"):
        NoExpertDistribution().execute(RecordExperts("start"))
    with pytest.raises(OSError, match="gone"):
        made(Ranks(), folder=str(tmp_path / "gone")).execute(RecordExperts("dump"))


def test_utilization_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    experts = made(Ranks(), report_steps=2)
    for number in range(4):
        experts.commit(step(number, EVEN, EVEN))
    assert caplog.text.count("100%") == 2
