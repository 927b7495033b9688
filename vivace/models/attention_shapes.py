"""What attention of each kind has of weights, and what it keeps of a token."""

from __future__ import annotations

import math

import msgspec


class GroupedAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped-query attention of one layer; `gated`: a gate as wide as the queries beside them;
    `value_dim`: of a value, where it is not as wide as a key."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    gated: bool = False

    def parameters(self, hidden: int) -> tuple[int, int]:
        """(shared out over ranks by head, held by every rank)"""
        queries = self.heads * self.head_dim * (2 if self.gated else 1)
        pair = self.head_dim + self.value_dim
        return hidden * (queries + self.heads * self.value_dim + self.kv_heads * pair), 0

    def kv_elements(self, ranks: int) -> int:
        """Numbers kept for one token by one of `ranks`; heads are copied when there are fewer."""
        return max(1, -(-self.kv_heads // ranks)) * (self.head_dim + self.value_dim)


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2), with the index of sparse attention (V3.2)."""

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    index_heads: int = 0
    index_dim: int = 0

    def parameters(self, hidden: int) -> tuple[int, int]:
        """(shared out over ranks by head, held by every rank)"""
        queries = self.heads * (self.nope + self.rope)
        by_head = (self.q_rank or hidden) * queries
        by_head += self.kv_rank * self.heads * (self.nope + self.value)
        by_head += self.heads * self.value * hidden
        everywhere = hidden * (self.q_rank + self.kv_rank + self.rope)
        if self.index_heads:
            everywhere += self.q_rank * self.index_heads * self.index_dim
            everywhere += hidden * (self.index_dim + self.index_heads)
        return by_head, everywhere

    def kv_elements(self, ranks: int) -> int:
        """One latent serves all heads, so every rank keeps it."""
        return self.kv_rank + self.rope + self.index_dim


class CompressedAttention(msgspec.Struct, frozen=True, kw_only=True):
    """One key, which is the value too, for all heads (DeepSeek-V4). Of every `ratio` tokens one is
    kept in a layer, beside a window of the last ones; output in groups of low rank. The small
    compressors are not counted.

    `ratios`: of each layer, 0: only the window; layers with an index have the ratio `indexed`.
    """

    heads: int
    head_dim: int
    q_rank: int
    o_rank: int
    o_groups: int
    ratios: tuple[int, ...]
    window: int
    index_heads: int
    index_dim: int
    indexed: int = 4

    def parameters(self, hidden: int) -> tuple[int, int]:
        """(shared out over ranks by head, held by every rank); of a layer with an index."""
        width = self.heads * self.head_dim
        by_head = self.q_rank * width + width * self.o_rank + self.o_groups * self.o_rank * hidden
        everywhere = hidden * (self.q_rank + self.head_dim)
        everywhere += self.index_heads * self.index_dim * self.q_rank
        return by_head, everywhere + hidden * (self.index_dim + self.index_heads)

    def kv_elements(self, ranks: int) -> int:
        """Mean of the layers, rounded up; every rank keeps it."""
        kept = sum(self.head_dim / ratio for ratio in self.ratios if ratio)
        kept += sum(self.index_dim / ratio for ratio in self.ratios if ratio == self.indexed)
        return max(1, math.ceil(kept / len(self.ratios)))

    def window_bytes(self) -> int:
        """Of one request in one layer, in 16 bits."""
        return self.window * self.head_dim * 2


Attention = GroupedAttention | LatentAttention | CompressedAttention


class LinearAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Gated delta layers (Qwen3-Next): a state for each request, nothing for each token."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    window: int

    def parameters(self, hidden: int) -> int:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        projections = hidden * (2 * keys + 2 * values + 2 * self.value_heads)
        return projections + (2 * keys + values) * self.window + values * hidden

    def state_bytes(self, ranks: int, number: int) -> int:
        """On one rank: the state in float32, and the window, where a number has so many bytes."""
        heads = max(1, self.value_heads // ranks)
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        window = (2 * keys + values) // ranks * (self.window - 1) * number
        return heads * self.key_dim * self.value_dim * 4 + window
