"""Build -> bind -> load: how a model comes to life.

Layers are built with global shapes and nothing else. One walk binds names and what the device
offers, a second lets each layer pull its own tensors from the checkpoint. A model file therefore
holds the architecture and no ranks, prefixes, quantization or weight tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vivace.platforms.ops.table import Ops
from vivace.quantization.method import LinearMethod, Matrix


class Weights(Protocol):
    """A checkpoint under Hugging Face's tensor names."""

    def has(self, name: str) -> bool: ...

    def names(self) -> Iterable[str] | None:
        """What the files have; None = whatever is asked for (a dummy)."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor on the CPU; raises CheckpointError when missing or of another shape."""
        ...

    def take_stored(self, name: str, shape: tuple[int, ...]) -> Matrix:
        """As `take`, but quantized blocks stay as the file has them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Bindings:
    """What a layer gets when it is bound."""

    ops: Ops
    dtype: torch.dtype
    """of activations and of what is not a matrix"""
    matrix_dtype: torch.dtype
    """of matrices that are not quantized"""
    device: torch.device
    read: Callable[[Weights, str, tuple[int, int]], Matrix]
    """how a matrix is taken from the checkpoint: decoded, or as it is stored"""
    linear_method: Callable[[str], LinearMethod]
    """full layer name -> a fresh method that will hold its weight"""
    longest: int | None = None
    """tokens of the longest sequence the device can hold, where somebody knows"""


class Module:
    """A node of the model; children are found by attribute (also in lists), in order.

    Attributes that begin with an underscore are shared: another node owns and loads them.
    """

    name: str = ""

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

    def bind(self, name: str, env: Bindings) -> None:
        """Give this node and everything below its full name and the device's ops."""
        self.name = name
        for attribute, child in self.children():
            child.bind(f"{name}.{attribute}" if name else attribute, env)

    def load(self, weights: Weights) -> None:
        """Pull weights, depth first."""
        for _, child in self.children():
            child.load(weights)


def read_decoded(weights: Weights, name: str, shape: tuple[int, int]) -> Matrix:
    return weights.take(name, shape)


def read_stored(weights: Weights, name: str, shape: tuple[int, int]) -> Matrix:
    return weights.take_stored(name, shape)


def sibling(name: str, other: str) -> str:
    """`other` beside the layer `name`: ("a.b.qkv", "q_proj") -> "a.b.q_proj"."""
    prefix, dot, _ = name.rpartition(".")
    return f"{prefix}{dot}{other}"
