"""Ranks as threads of one process: each has a model of its own, and they meet in sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar
from unittest.mock import patch

import paged_model
import torch
from paged_model import PagedModel, load
from torch import Tensor

from vivace.checkpoint.weights import TrackedWeights
from vivace.layers.experts import RoutedExperts
from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.platform import NativePlatform
from vivace.platforms.dispatch import ExpertSpread, collect_rows, dispatch_rows
from vivace.platforms.groups import Group
from vivace.platforms.platform import detect

T = TypeVar("T")


class Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size, timeout=60)
        self.shares: list[Any] = [None] * size

    def exchange(self, rank: int, share: Any) -> list[Any]:
        self.shares[rank] = share
        self.barrier.wait()
        found = list(self.shares)
        self.barrier.wait()
        return found


class ThreadGroup:
    """A `Group`; sums are added in the order of the ranks."""

    def __init__(self, meeting: Meeting, rank: int, size: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, size

    def sum(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for part in self._meeting.exchange(self.rank, x.clone()):
            total += part
        return x.copy_(total)

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        return torch.cat(self._meeting.exchange(self.rank, x.clone()), 1)

    def gather_rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        return torch.cat(self._meeting.exchange(self.rank, x.clone()))

    def dispatch(self, x: Tensor, spread: ExpertSpread) -> Tensor:
        return dispatch_rows(x, spread, self.rank, self.size, self.exchange)

    def collect(self, y: Tensor, spread: ExpertSpread) -> Tensor:
        return collect_rows(y, spread, self.rank, self.size, self.exchange)

    def exchange(self, rows: list[Tensor], counts: list[int]) -> list[Tensor]:
        found = self._meeting.exchange(self.rank, [one.clone() for one in rows])
        came = [parts[self.rank] for parts in found]
        assert [len(one) for one in came] == counts
        return came

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        found = self._meeting.exchange(self.rank, list(numbers))
        return [min(column) for column in zip(*found, strict=True)]

    def divide(self, parts: Sequence[Sequence[int]]) -> Group:
        raise NotImplementedError


MakeGroup = Callable[[Any, int], Any]
"""(the rank's kernels, its number)"""


class ThreadRanks:
    """`read`: bytes that each rank has read of the checkpoint."""

    def __init__(
        self, path: Path, size: int, *, make_group: MakeGroup | None = None, **how: Any
    ) -> None:
        meeting, native = Meeting(size), paged_model.PLATFORM
        make_group = make_group or (lambda kernels, rank: ThreadGroup(meeting, rank, size))
        self.models: list[PagedModel] = []
        self.read: list[int] = []
        count = patch.object(TrackedWeights, "finish", lambda w, _: self.read.append(w.read_bytes))
        with count, patch.object(paged_model, "PLATFORM", native):
            for rank in range(size):
                kernels = None
                if native is not None:
                    kernels = Kernels(1)
                    paged_model.PLATFORM = NativePlatform(detect("cpu"), kernels)
                group: Any = make_group(kernels, rank)
                self.models.append(PagedModel(load(path, group=group, **how)))
        self._threads = ThreadPoolExecutor(size)

    def each(self, run: Callable[[PagedModel], T]) -> list[T]:
        return [one.result(60) for one in [self._threads.submit(run, m) for m in self.models]]

    def feed(self, tokens: Sequence[int], chunks: Sequence[int]) -> Tensor:
        """[count, vocabulary]: the same on every rank"""
        first, *others = self.each(lambda model: model.feed("a", tokens, chunks))
        assert all(torch.equal(first, other) for other in others)
        return first

    def experts(self, rank: int) -> list[RoutedExperts]:
        model: Any = self.models[rank].model
        return list(model.find(RoutedExperts))
