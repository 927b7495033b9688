"""Build -> bind -> load: how a model comes to life.

Layers are built with global shapes and nothing else. One walk binds names, this rank's groups and
what the device offers, a second lets each layer pull its own tensors from the checkpoint. A model
file therefore holds the architecture and no ranks, prefixes, quantization or weight tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vivace.checkpoint.layouts import InputGroups
from vivace.checkpoint.weights import Weights
from vivace.layers.expert_location import ONE_COPY, ExpertLocations
from vivace.layers.layout import SINGLE, ParallelLayout
from vivace.platforms.ops.table import Ops
from vivace.quantization.method import QuantizationConfig
from vivace.quantization.packed import WeightPacker

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Bindings:
    """What a layer gets when it is bound."""

    packer: WeightPacker
    """how matrices are kept"""
    quantization: QuantizationConfig
    """how they are stored"""
    layout: ParallelLayout = SINGLE
    """this rank's share of each layer"""
    experts: ExpertLocations = ONE_COPY
    """which rank has which"""
    longest: int | None = None
    """tokens of the longest sequence the device can hold, where somebody knows"""
    groups: InputGroups = InputGroups()
    """inputs that share a scale"""

    @property
    def ops(self) -> Ops:
        return self.packer.ops

    @property
    def dtype(self) -> torch.dtype:
        """of activations and of what is not a matrix"""
        return self.packer.activations

    @property
    def device(self) -> torch.device:
        return self.packer.device


class Module:
    """A node of the model; children are found by attribute (also in lists), in order.

    Attributes that begin with an underscore are shared: another node owns and loads them.
    """

    name: str = ""
    elsewhere: bool = False
    """another stage of a pipeline has it: its names are claimed, and nothing of it is loaded"""

    def children(self) -> Iterator[tuple[str, Module]]:
        for attribute, value in vars(self).items():
            if attribute.startswith("_"):
                continue
            if isinstance(value, Module):
                yield attribute, value
            elif isinstance(value, list):
                yield from (
                    (f"{attribute}.{i}", child)
                    for i, child in enumerate(value)
                    if isinstance(child, Module)
                )

    def find(self, kind: type[T]) -> Iterator[T]:
        """All modules of a kind below this one, in order, that this rank has."""
        for _, child in self._held_children():
            if isinstance(child, kind):
                yield child
            yield from child.find(kind)

    def _held_children(self) -> list[tuple[str, Module]]:
        return [(name, child) for name, child in self.children() if not child.elsewhere]

    def bind(self, name: str, env: Bindings) -> None:
        """Give this node and everything below its full name and the device's ops."""
        self.name = name
        for attribute, child in self.children():
            child.bind(f"{name}.{attribute}" if name else attribute, env)

    def load(self, weights: Weights) -> None:
        """Pull weights, depth first. Raises CheckpointError."""
        for _, child in self._held_children():
            child.load(weights)

    def update(self, weights: Weights) -> None:
        """Other numbers for what was loaded, in the same memory: captured steps see them."""
        for _, child in self._held_children():
            child.update(weights)

    def claims(self) -> Iterator[str]:
        """Names of the checkpoint's tensors that this architecture has a place for, whether this
        rank takes them or not."""
        for _, child in self.children():
            yield from child.claims()


def sibling(name: str, other: str) -> str:
    """`other` beside the layer `name`: ("a.b.qkv", "q_proj") -> "a.b.q_proj"."""
    prefix, dot, _ = name.rpartition(".")
    return f"{prefix}{dot}{other}"


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`, without a call of torch's where it is that: a captured step has none."""
    return x if x.dtype is dtype else x.to(dtype)
