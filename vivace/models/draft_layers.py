"""Layers behind the last one that predict further tokens (multi-token prediction; DeepSeek-V3,
2024): found in a checkpoint, and left there."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.checkpoint.weights import Weights
from vivace.layers.module import Module


class DraftLayers(Module):
    """`model.layers.first` and those behind it; no number of them is read."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count
        self.found: tuple[str, ...] = ()

    def load(self, weights: Weights) -> None:
        prefixes = tuple(f"model.layers.{self.first + i}." for i in range(self.count))
        self.found = tuple(name for name in weights.names() or () if name.startswith(prefixes))

    def claims(self) -> Iterator[str]:
        """Whatever a format has of them."""
        yield from self.found
