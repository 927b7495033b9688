"""Layers behind the last one that predict further tokens (multi-token prediction; DeepSeek-V3,
2024): found in a checkpoint, and left there."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.checkpoint.weights import Weights
from vivace.layers.module import Module


class DraftLayers(Module):
    """Everything whose name begins with one of these; no number of it is read."""

    def __init__(self, *prefixes: str) -> None:
        self.prefixes = prefixes
        self.found: tuple[str, ...] = ()

    def load(self, weights: Weights) -> None:
        self.found = tuple(name for name in weights.names() or () if name.startswith(self.prefixes))

    def claims(self) -> Iterator[str]:
        """Whatever a format has of them."""
        yield from self.found
