"""Records of where tokens go among experts, and the files that they are written into."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np


@dataclass
class CountedSteps:
    """Steps since some moment."""

    tokens: np.ndarray
    """[layers with experts, experts] int64"""
    steps: int = 0
    utilization: float = 0.0
    """sum over steps"""

    def add(self, tokens: np.ndarray, utilization: float) -> None:
        self.tokens += tokens
        self.steps += 1
        self.utilization += utilization

    def remove(self, tokens: np.ndarray, utilization: float) -> None:
        """What was added once."""
        self.tokens -= tokens
        self.steps -= 1
        self.utilization -= utilization

    @property
    def mean_utilization(self) -> float:
        return self.utilization / self.steps if self.steps else 1.0


@dataclass(frozen=True)
class RecordedStep:
    number: int
    slots: np.ndarray
    """[layers with experts, slots] int64"""
    tokens: np.ndarray
    utilization: float


@dataclass(frozen=True)
class RecordedLayers:
    """Which of a model's layers have experts: the rows of what is counted."""

    layers: int
    mixed: Sequence[int]

    def rows(self, counts: np.ndarray) -> list[list[int]]:
        """Of all layers; zeros where a layer has no experts."""
        found = np.zeros((self.layers, counts.shape[1]), np.int64)
        found[list(self.mixed)] = counts
        return found.tolist()


class ExpertRecord(Protocol):
    def add(self, step: RecordedStep) -> None: ...

    def write(self, placed: Mapping[int, Sequence[int]]) -> Iterator[bytes]:
        """JSON of a file, in parts. `placed`: the expert of each slot, by its layer."""
        ...


class SummedRecord:
    """Sums over the last `buffer` steps (-1: over all)."""

    def __init__(self, layers: RecordedLayers, experts: int, buffer: int) -> None:
        self._layers = layers
        self._buffer = buffer
        self._sum = CountedSteps(np.zeros((len(layers.mixed), experts), np.int64))
        self._last = deque[RecordedStep]()

    def add(self, step: RecordedStep) -> None:
        self._sum.add(step.tokens, step.utilization)
        if self._buffer < 0:
            return
        self._last.append(step)
        if len(self._last) > self._buffer:
            first = self._last.popleft()
            self._sum.remove(first.tokens, first.utilization)

    def write(self, placed: Mapping[int, Sequence[int]]) -> Iterator[bytes]:
        yield msgspec.json.encode({
            "rank": 0,
            "logical_count": self._layers.rows(self._sum.tokens),
            "average_utilization_rate_over_window": self._sum.mean_utilization,
        })  # fmt: skip


class StepRecord:
    """Each of the last `buffer` steps (-1: of all)."""

    def __init__(self, layers: RecordedLayers, experts: int, buffer: int) -> None:
        self._layers = layers
        self._experts = experts
        self._steps = deque[RecordedStep](maxlen=None if buffer < 0 else buffer)

    def add(self, step: RecordedStep) -> None:
        self._steps.append(step)

    def write(self, placed: Mapping[int, Sequence[int]]) -> Iterator[bytes]:
        yield b'{"records":['
        for number, step in enumerate(self._steps):
            counts = self._layers.rows(step.slots)
            record = {
                "forward_pass_id": step.number,
                "rank": 0,
                "global_physical_count": counts,
            }
            yield b"," * (number > 0) + msgspec.json.encode(record)
        slots = len(next(iter(placed.values())))
        trivial = [slot % self._experts for slot in range(slots)]
        rows = [placed.get(layer, trivial) for layer in range(self._layers.layers)]
        yield b'],"last_physical_to_logical_map":' + msgspec.json.encode(rows) + b"}"


RECORDS = {"stat": SummedRecord, "per_pass": StepRecord}
"""by --expert-distribution-recorder-mode"""
