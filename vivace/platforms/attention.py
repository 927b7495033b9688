"""Attention over paged keys and values: the protocol every device implements.

The KV of one layer is one tensor [pages, page_size, 2, kv_heads, head_dim] (2 = key, value): the
keys and values of a token are neighbors, so that one copy stores a token and one copy per page
gathers a sequence. In int8 a head takes four bytes more, for its scale (ops/cache.py). A span's
queries see the row's earlier KV, and each other causally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """One attention layer's shape, as the model declares it."""

    index: int
    """which KV of `KVMemory.layers` it uses"""
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    """a query at position p sees positions p - window + 1 .. p; None = everything before it"""
    soft_cap: float | None = None
    """scores become cap * tanh(score / cap) before the softmax"""
    sinks: Tensor | None = field(default=None, compare=False)
    """[heads]: a score of each head that takes its part of the softmax and has no value; only
    backends of torch operations have it"""


class KVMemory(Protocol):
    """Where keys and values live. `layers[i]`: [pages, page_size, 2, kv_heads, head_dim], in int8
    head_dim + 4."""

    page_size: int
    layers: list[Tensor]
    groups: list[int]
    """the cache group of each layer: which of `Step.groups` are its pages"""
    versions: np.ndarray
    """[pages of the first group] int64, for backends that keep copies of rows: such a backend adds
    one to the pages its steps write to, the owner to those it copies to, zeroes or vacates. Others
    ignore it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPages:
    """Where a step's tokens go, and where the context of its spans is, in one cache group.

    Kernels read the tensors by address: while a graph is captured, these are fixed buffers.
    """

    slot_mapping: Tensor
    """[T] int64: page * page_size + offset of each token"""
    page_table: Tensor
    """[S, any] int64 page ids; entries in front of a window and behind a row's length are any valid
    page, which is not read"""


class Step(Protocol):
    """What attention needs of a step (`worker.step_input.StepInput` is one). Kernels read
    it by address: while a graph is captured, these are fixed buffers."""

    @property
    def groups(self) -> Sequence[StepPages]:
        """of each cache group"""
        ...

    @property
    def context_lens(self) -> Tensor:
        """[S] int64: context of the row including this step"""
        ...

    @property
    def query_starts(self) -> Tensor:
        """[S + 1] int64: the tokens of span i are query_starts[i]..query_starts[i + 1]"""
        ...

    @property
    def host(self) -> HostStep: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStep:
    """The shape of a step on the host, where it is decided which kernels run. S spans."""

    starts: np.ndarray
    """[S + 1] int64: tokens of span i are starts[i]..starts[i + 1] of the step's T tokens"""
    context_lens: np.ndarray
    """[S] int64: context of the row including this span; exact where rows lie in host memory,
    elsewhere upper bounds, for sizes only"""
    decode: bool
    """every span is one token"""
    rows: np.ndarray | None = None
    """[S] int64 the worker's row of each span, when there is one"""


class AttentionBackend(Protocol):
    """Stores a step's keys and values, then attends."""

    def plan(self, step: Step) -> None:
        """Once per step, before the layers: decide shapes, write index and mask buffers."""
        ...

    def attend(
        self,
        layer: AttentionLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: Step,
        out: Tensor | None = None,
    ) -> Tensor:
        """q[T, Hq, D], k[T, Hk, D], v[T, Hk, D] -> [T, Hq * D]."""
        ...


class AttendingStep(Step, Protocol):
    """A step with its backend, as layers see it."""

    @property
    def positions(self) -> Tensor:
        """[T] int64 position of each token in its sequence"""
        ...

    @property
    def attention(self) -> AttentionBackend: ...
