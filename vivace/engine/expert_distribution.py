"""Where tokens go among experts: what is recorded of it, and moves that even it out (EPLB).

Every step's result brings how many pairs of token and expert went to each slot. The slots' experts
are known here, and only here they change: `MoveExperts` goes to all ranks between two steps.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vivace.config.expert_balance import ExpertDevices, place_experts
from vivace.engine.executor import Executor
from vivace.engine.expert_records import (
    RECORDS,
    CountedSteps,
    ExpertRecord,
    RecordedLayers,
    RecordedStep,
)
from vivace.files import WRITE, open_own_file
from vivace.protocol.messages import RecordExperts
from vivace.protocol.step import StepResult
from vivace.protocol.workers import MoveExperts

logger = logging.getLogger("vivace.engine")
NOT_RECORDED = "give --expert-distribution-recorder-mode (stat or per_pass) at the start"
STARTED, STOPPED = "recording", "not recording"


@dataclass(frozen=True, kw_only=True)
class DistributionSettings:
    """`placed`: the expert of each slot at the start, by the number of the layer."""

    layers: int
    """of the model, those without experts too"""
    experts: int
    placed: dict[int, tuple[int, ...]]
    room: ExpertDevices
    mode: str = "stat"
    """what a record has: sums (stat) or every step (per_pass)"""
    buffer: int = -1
    """steps that a record keeps, the last ones; -1: all"""
    rebalance_steps: int = 0
    """between two rebalances; 0: none"""
    algorithm: str = "auto"
    chunk: int | None = None
    """layers moved between two steps, at once; None: all, one after the other, so that ranks have
    no more than the weights of one twice"""
    threshold: float = 1.0
    """mean utilization above which nothing moves"""
    report_steps: int = 0
    """after which the utilization is logged; 0: never"""
    folder: str = "/tmp"
    keeps: bool = True
    """this engine's records are the ones that are written: of engines that share experts, all of
    which count the tokens of all, the first one's"""


class ExpertDistribution:
    """Of one engine. `commit` hears of every step; where `due`, nothing is planned until nothing is
    in flight, and `rebalance` has been called."""

    def __init__(
        self,
        settings: DistributionSettings,
        executor: Executor,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._clock = clock
        self._layers = sorted(settings.placed)
        self._placed = dict(settings.placed)
        self._index = self._find_experts()
        self._window = self._new_window()
        self._reported = self._new_window()
        self._record = self._new_record()
        self._records = False
        self._moves: deque[dict[int, tuple[int, ...]]] = deque()
        self._balances = settings.rebalance_steps > 0
        self.due = False

    def commit(self, result: StepResult) -> None:
        if not result.expert_counts:
            return
        counts = np.frombuffer(result.expert_counts, np.int64).reshape(self._index.shape)
        tokens = np.bincount(self._index.ravel(), counts.ravel(), self._window.tokens.size)
        tokens = tokens.astype(np.int64).reshape(self._window.tokens.shape)
        used = utilization_of_devices(counts, self._settings.room.devices)
        self._window.add(tokens, used)
        if self._records:
            self._record.add(RecordedStep(result.number, counts, tokens, used))
        if self._settings.report_steps:
            self._report(tokens, used)
        complete = self._window.steps >= self._settings.rebalance_steps
        self.due = self._balances and (bool(self._moves) or complete)

    def rebalance(self) -> None:
        """Choose new places, or go on with the moves of those that were chosen; between steps."""
        self.due = False
        if not self._moves:
            self._choose()
        while self._moves:
            self._move(self._moves.popleft())
            if self._settings.chunk is not None:
                break

    def execute(self, command: RecordExperts) -> str:
        """What was done, or nothing where another engine keeps records. Raises ValueError where it
        cannot be, OSError where a file cannot."""
        if not self._settings.keeps:
            return ""
        if command.action == "start":
            self._record, self._records = self._new_record(), True
            return STARTED
        if command.action == "stop":
            self._records = False
            return STOPPED
        return self._dump()

    # --- balance ----------------------------------------------------------------------------

    def _choose(self) -> None:
        window, self._window = self._window, self._new_window()
        if window.mean_utilization > self._settings.threshold:
            logger.info("experts stay: devices are used to %.0f%%", 100 * window.mean_utilization)
            return
        found = {
            layer: place_experts(loads.tolist(), self._settings.room, self._settings.algorithm)
            for layer, loads in zip(self._layers, window.tokens, strict=True)
        }
        changed = [layer for layer in self._layers if found[layer] != self._placed[layer]]
        each = self._settings.chunk or 1
        for first in range(0, len(changed), each):
            self._moves.append({layer: found[layer] for layer in changed[first : first + each]})
        logger.info(
            "experts of %d layers move: devices were used to %.0f%%",
            len(changed),
            100 * window.mean_utilization,
        )

    def _move(self, moved: dict[int, tuple[int, ...]]) -> None:
        command = MoveExperts(list(moved), [list(placed) for placed in moved.values()])
        refusals = [state.refused for state in self._executor.control(command) if state.refused]
        if refusals:
            logger.warning("experts stay where they are from now on: %s", refusals[0])
            self._balances = False
            self._moves.clear()
            return
        self._placed |= moved
        self._index = self._find_experts()

    def _find_experts(self) -> np.ndarray:
        """[layers with experts, slots]: where a slot's expert is among those of all layers"""
        placed = np.array([self._placed[layer] for layer in self._layers], np.int64)
        return placed + np.arange(len(self._layers))[:, None] * self._settings.experts

    def _new_window(self) -> CountedSteps:
        return CountedSteps(np.zeros((len(self._layers), self._settings.experts), np.int64))

    def _report(self, tokens: np.ndarray, used: float) -> None:
        self._reported.add(tokens, used)
        if self._reported.steps >= self._settings.report_steps:
            logger.info(
                "experts: devices used to %.0f%% in %d steps",
                100 * self._reported.mean_utilization,
                self._reported.steps,
            )
            self._reported = self._new_window()

    # --- records ----------------------------------------------------------------------------

    def _dump(self) -> str:
        """Write what is recorded, and begin again where that worked; returns the file's name."""
        file = f"expert_distribution_recorder_{self._clock():.6f}.json"
        name = str(Path(self._settings.folder) / file)
        try:
            write_whole(name, self._record.write(self._placed))
        except OSError as error:
            raise OSError(f"{name}: {error.strerror or error}") from None
        self._record = self._new_record()
        return name

    def _new_record(self) -> ExpertRecord:
        asked = self._settings
        layers = RecordedLayers(asked.layers, self._layers)
        return RECORDS[asked.mode](layers, asked.experts, asked.buffer)


def write_whole(name: str, parts: Iterable[bytes]) -> None:
    """A new file; none where there is no room for all of it. Raises OSError."""
    with os.fdopen(open_own_file(name, WRITE, 0o644), "wb") as file:
        try:
            file.writelines(parts)
            file.flush()
        except OSError:
            Path(name).unlink()
            os.ftruncate(file.fileno(), 0)
            raise


class NoExpertDistribution:
    """Of an engine that counts nothing."""

    due = False

    def commit(self, result: StepResult) -> None: ...

    def rebalance(self) -> None: ...

    def execute(self, command: RecordExperts) -> str:
        raise ValueError(NOT_RECORDED)


def utilization_of_devices(counts: np.ndarray, devices: int) -> float:
    """counts[layers, slots] -> mean over layers of the mean by the greatest load of a device"""
    loads = counts.reshape(len(counts), devices, -1).sum(2)
    most = loads.max(1)
    return float(np.where(most > 0, loads.mean(1) / np.maximum(most, 1), 1.0).mean())
