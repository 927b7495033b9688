"""What stands between a layer and its weight: methods, and what they get of a checkpoint.

A layer says which tensors it is made of and which part of them is this rank's. Its method takes
them from the checkpoint, whatever the format has beside or in the place of `weight`, keeps them as
the device likes them, and computes. Models, layers and readers know no format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from vivace.checkpoint.row_order import ReorderedRows
from vivace.checkpoint.weights import ALL, FLOATS, CheckpointError, Weights
from vivace.platforms.attention import AttendingStep
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.moe import Routes
from vivace.platforms.ops.segments import Segments
from vivace.platforms.ops.stored import Packable, StoredBlocks
from vivace.platforms.ops.table import Activation

Matrix = Packable
WEIGHT, BIAS = "weight", "bias"
OTHER_TP = "give another --tp-size"


@dataclass(frozen=True)
class LocalPart:
    """One tensor of a linear layer."""

    name: str
    """its full name in the checkpoint without ".weight" """
    size: int
    """rows of the whole"""
    rows: slice
    """this rank's"""

    @property
    def local_size(self) -> int:
        return len(range(self.size)[self.rows])


@dataclass(frozen=True)
class LinearShape:
    """A linear layer as it is in the checkpoint, and what of it is this rank's."""

    parts: tuple[LocalPart, ...]
    inputs: int
    """columns of the whole"""
    columns: slice = field(default_factory=lambda: ALL)
    """this rank's"""
    bias: bool = False
    adds_bias: bool = True
    """False where the ranks' results are added up and another rank's has the bias in it"""
    segments: Segments | None = None
    """of this rank's columns, where their sums are added in one order on any number of ranks"""
    cut_advice: str = OTHER_TP
    """where columns end within numbers that share a scale"""


class LayerWeights:
    """The tensors of one linear layer: `part.suffix` is the name of one."""

    def __init__(self, weights: Weights, shape: LinearShape) -> None:
        self.source = weights
        self.shape = shape

    def has(self, part: LocalPart, suffix: str) -> bool:
        return self.source.has(f"{part.name}.{suffix}")

    def dtype(self, part: LocalPart, suffix: str) -> torch.dtype | None:
        """None: there is no such tensor, or of no type of torch's."""
        name = f"{part.name}.{suffix}"
        return self.source.dtype(name) if self.source.has(name) else None

    def dimensions(self, part: LocalPart, suffix: str) -> int | None:
        """None where nobody knows: it is missing, or a dummy."""
        name = f"{part.name}.{suffix}"
        known = self.source.names() is not None and self.source.has(name)
        return len(self.source.shape(name)) if known else None

    def take(
        self,
        part: LocalPart,
        suffix: str,
        shape: tuple[int, ...],
        rows: slice = ALL,
        columns: slice = ALL,
        *,
        dtypes: Collection[torch.dtype] = FLOATS,
    ) -> Tensor:
        """As `Weights.take`."""
        name = f"{part.name}.{suffix}"
        return self.source.take(name, shape, rows, columns, dtypes=dtypes)

    def take_matrix(
        self, part: LocalPart, suffix: str = WEIGHT, *, dtypes: Collection[torch.dtype] = FLOATS
    ) -> Tensor:
        """[this rank's rows, this rank's columns]"""
        whole = (part.size, self.shape.inputs)
        return self.take(part, suffix, whole, part.rows, self.shape.columns, dtypes=dtypes)

    def take_stored(self, part: LocalPart) -> Tensor | StoredBlocks:
        """As `take_matrix`, but blocks stay as the file has them."""
        return self.source.take_stored(
            f"{part.name}.{WEIGHT}",
            (part.size, self.shape.inputs),
            part.rows,
            self.shape.columns,
        )

    def take_bias(self) -> Tensor | None:
        """[rows of all parts]; None where the layer has none, or another rank adds it."""
        if not (self.shape.bias and self.shape.adds_bias):
            return None
        biases = [self.take(part, BIAS, (part.size,), part.rows) for part in self.shape.parts]
        return biases[0] if len(biases) == 1 else torch.cat(biases)

    def row_order(self, part: LocalPart) -> Tensor | None:
        """What rows that were taken out of words are to be put into; None: they are in order."""
        source = self.source
        return source.row_order(part.name, part.rows) if isinstance(source, ReorderedRows) else None

    def fail(
        self, part: LocalPart, suffix: str, reason: str, advice: str = "fetch the checkpoint again"
    ) -> CheckpointError:
        return CheckpointError(f"{self.source.label(f'{part.name}.{suffix}')}: {reason}; {advice}")


class LinearMethod(Protocol):
    """One linear layer's weight, and its product with it."""

    fusible: bool
    """`apply` is `Ops.linear` of `operands` and nothing else: an op that computes more at once may
    take these (`FusibleMethod`)"""

    def load(self, weights: LayerWeights) -> None:
        """Raises CheckpointError."""
        ...

    def apply(self, x: Tensor, step: AttendingStep | None) -> Tensor:
        """x[T, in] -> [T, out]; `step` is None where rows are not those of a step (a head)."""
        ...

    def update(self, weights: LayerWeights) -> None:
        """Other numbers in the same memory, which captured steps have the addresses of."""
        ...

    def suffixes(self) -> Collection[str]:
        """What this format stores beside biases, read or not; of every part."""
        ...


class FusibleMethod(LinearMethod, Protocol):
    operands: Operands


def is_fusible(method: LinearMethod) -> TypeGuard[FusibleMethod]:
    return method.fusible


Combine = Callable[[Tensor, Tensor | None, Routes], Tensor]
"""as `Ops.moe_combine`"""


class ExpertMethod(Protocol):
    """The weights of the experts that are on this rank, and what they make of tokens."""

    def load(self, experts: Sequence[tuple[LayerWeights, LayerWeights]]) -> None:
        """(gate above up, down) of each local expert"""
        ...

    def apply(
        self,
        x: Tensor,
        weights: Tensor,
        experts: Tensor,
        step: AttendingStep,
        *,
        weigh_inputs: bool = False,
        combine: Combine | None = None,
    ) -> Tensor:
        """x[T, hidden], weights[T, top], experts[T, top] int64 -> [T, hidden]; experts count from
        0 in the order they were loaded in, others are another rank's and add nothing.
        `weigh_inputs`: an expert sees its token times its weight, and the results are added up
        (Llama 4). `combine`: what adds up a token's experts in the place of `Ops.moe_combine`."""
        ...

    def update(self, experts: Sequence[tuple[LayerWeights, LayerWeights]]) -> None: ...

    def prepare(
        self, slots: Sequence[int], experts: Sequence[tuple[LayerWeights, LayerWeights]]
    ) -> Callable[[], None]:
        """Other experts in the place of some: read now, and put there by the returned call, in
        memory that captured steps have the addresses of."""
        ...

    def suffixes(self) -> Collection[str]: ...


class QuantizationConfig(Protocol):
    """How a checkpoint stores its weights and what is made of them (SGLang's and vLLM's
    QuantizationConfig)."""

    norm_biases: bool
    """norms have a bias, which took up what was taken out of activations (ModelSlim)"""

    def linear_method(self, layer: str, parts: Sequence[str]) -> LinearMethod:
        """A fresh one for the layer `layer`, made of the tensors `parts` (full names)."""
        ...

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod: ...

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        """A matrix that no method owns (an embedding)."""
        ...


def claim_tensors(shape: LinearShape, suffixes: Collection[str]) -> Iterator[str]:
    for part in shape.parts:
        yield from (f"{part.name}.{suffix}" for suffix in suffixes)
        if shape.bias:
            yield f"{part.name}.{BIAS}"
