"""Attention over paged keys and values: the protocol every device implements.

What layers keep lies in a `CacheMemory` (platforms/cache.py), laid out as the platform likes it. In
int8 a head takes four bytes more, for its scale (ops/cache.py). A span's queries see the row's
earlier KV, and each other causally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cache import CachePart, LayerCache

Positions = TypeVar("Positions", int, np.ndarray, Tensor)


@dataclass(frozen=True, slots=True)
class LocalAttention:
    """Which of the keys before it a query sees; with neither, all."""

    window: int | None = None
    """the last ones up to its own"""
    chunk: int | None = None
    """those of its own chunk: positions are cut into chunks of so many (Llama 4); never beside a
    window"""

    def first_key(self, position: Positions) -> Positions:
        """The first position that a query at `position` sees; below 0: everything."""
        if self.chunk is not None:
            return position - position % self.chunk
        return position - position if self.window is None else position - self.window + 1

    def limits(self, longest: int) -> bool:
        """Whether any query of so many tokens misses one before it."""
        return self.first_key(longest - 1) > 0


FULL_ATTENTION = LocalAttention()


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """One attention layer's shape, as the model declares it."""

    index: int
    """what it keeps is that of the layers with the same index"""
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    """a query at position p sees positions p - window + 1 .. p; None = everything before it"""
    chunk: int | None = None
    """a query sees the positions of its own chunk of so many; KV of all positions is kept"""
    soft_cap: float | None = None
    """scores become cap * tanh(score / cap) before the softmax"""
    sinks: Tensor | None = field(default=None, compare=False)
    """[heads] float32: a score of each head that takes its part of the softmax and has no value"""

    @property
    def local(self) -> LocalAttention:
        return LocalAttention(self.window, self.chunk)

    @property
    def cache(self) -> LayerCache:
        shape = (self.kv_heads, self.head_dim)
        parts = CachePart("k", shape), CachePart("v", shape)
        return LayerCache(index=self.index, parts=parts, window=self.window)


@dataclass(frozen=True, kw_only=True)
class LatentLayer:
    """Attention over latents (MLA; DeepSeek-V2, 2024): keys and values of all heads are made of one
    latent per token, and one rotated part is the same for all heads."""

    index: int
    heads: int
    latent_dim: int
    rope_dim: int
    scale: float
    window: int | None = None

    @property
    def cache(self) -> LayerCache:
        parts = CachePart("latent", (self.latent_dim,)), CachePart("rope", (self.rope_dim,))
        return LayerCache(index=self.index, parts=parts, window=self.window)


@dataclass(frozen=True, kw_only=True)
class RecurrentLayer:
    """Linear attention by the gated delta rule (Yang et al. 2024, arXiv 2412.06464), behind a short
    convolution, as Qwen3-Next has it: a state of fixed size for each row. Neighboring value heads
    share a key head."""

    index: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """tokens that the convolution sees, its own among them"""

    @property
    def group(self) -> int:
        """value heads of a key head"""
        return self.value_heads // self.key_heads

    @property
    def channels(self) -> int:
        """of the convolution: all heads' q, then k, then v"""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def cache(self) -> LayerCache:
        shape = (self.value_heads, self.key_dim, self.value_dim)
        parts = (
            CachePart("state", shape, torch.float32),
            CachePart("conv", (self.kernel - 1, self.channels), torch.float32),
        )
        return LayerCache(index=self.index, parts=parts, state=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentInputs:
    """What a recurrent layer has of T tokens; each may be a part of a wider tensor."""

    q: Tensor
    """[T, key_heads, key_dim] before the convolution, as k and v"""
    k: Tensor
    v: Tensor
    """[T, key_heads, group * value_dim]"""
    a: Tensor
    """[T, key_heads, group]: how much a head forgets"""
    b: Tensor
    """[T, key_heads, group]: how much of what is new it takes"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentWeights:
    """Of a recurrent layer, float32."""

    conv: Tensor
    """[kernel, channels]"""
    decay: Tensor
    """[value_heads]: a state keeps exp(-decay * softplus(a + dt_bias))"""
    dt_bias: Tensor


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
    paths: Tensor | None = None
    """[S, 1 + any] int64, where every span is one token: how many of the last keys that it sees lie
    elsewhere, then the slots of these in their order (trees of drafts). None: none do, or the
    backend does not take any"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStates:
    """Which states the spans of a step read and write. A state is never written where it is read,
    so that a step that fails can be run again."""

    read: Tensor
    """[S] int64: the slot of each row's state before the step"""
    write: Tensor
    """[S, 1 + drafts] int64: slots for the states behind a span's last known token, and behind each
    of its drafts"""
    drafts: np.ndarray | None
    """[S] int64: how many of a span's tokens are drafts; None: there are none"""


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
    def states(self) -> StepStates | None:
        """None: no layer has states"""
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
    engines: StepEngines = field(default_factory=lambda: StepEngines())


@dataclass(kw_only=True, slots=True)
class StepEngines:
    """Of a step that several engines take together."""

    tokens: Sequence[int] = ()
    """of each; empty: this engine takes it alone"""
    live: Tensor | None = None
    """[T] int64: positions of this one's tokens, -1 of one that is nobody's; None: there is none"""
    positions: Tensor | None = None
    """of all engines' tokens, once a layer has gathered them"""


class AttentionBackend(Protocol):
    """Stores a step's keys and values, then attends."""

    reads_paths: bool
    """it takes `StepPages.paths`, so drafts may be trees"""

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

    def attend_latent(
        self,
        layer: LatentLayer,
        q: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        rope: Tensor,
        step: Step,
    ) -> Tensor:
        """q[T, H, latent_dim] (with the key projection in it), q_rope[T, H, rope_dim],
        latent[T, latent_dim], rope[T, rope_dim] -> [T, H, latent_dim] float32: weighted latents."""
        ...

    def recur(
        self,
        layer: RecurrentLayer,
        inputs: RecurrentInputs,
        weights: RecurrentWeights,
        step: Step,
    ) -> Tensor:
        """-> [T, value_heads, value_dim] float32: what the states of the rows say to their tokens,
        each behind the token itself"""
        ...


class AttendingStep(Step, Protocol):
    """A step with its backend, as layers see it."""

    @property
    def positions(self) -> Tensor:
        """[T] int64 position of each token in its sequence"""
        ...

    @property
    def attention(self) -> AttentionBackend: ...
