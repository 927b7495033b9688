"""Linear layers over several inputs side by side, of which no copy is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from vivace.checkpoint.weights import Weights
from vivace.layers.layout import split, split_or_repeat
from vivace.layers.linear import Part
from vivace.layers.module import Bindings, Module, sibling
from vivace.platforms.attention import AttendingStep
from vivace.quantization.method import LayerWeights, LinearShape, LocalPart, claim_tensors

FLOATS = "use a draft that is not quantized, or NGRAM"


class JoinedLinear(Module):
    """inputs[T, width] each -> [T, sum of parts]: the layer's columns are cut where one input ends
    and the next begins, and their products are added up. A bias is taken where there is one."""

    shape: LinearShape
    """of the first input"""

    def __init__(
        self, width: int, inputs: int, parts: Sequence[Part], *, group: str = "replicated"
    ) -> None:
        self.width = width
        self.inputs = inputs
        self.parts = tuple(parts)
        self.group = group

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops, group = env.ops, env.layout.group(self.group)
        parts = tuple(
            LocalPart(
                sibling(name, part.name),
                part.size,
                (split_or_repeat if part.repeated else split)(name, part.size, part.unit, group),
            )
            for part in self.parts
        )
        names = [part.name for part in parts]
        self._shapes = [
            LinearShape(
                parts,
                self.inputs * self.width,
                columns=slice(place * self.width, (place + 1) * self.width),
                adds_bias=place == 0,
                cut_advice=FLOATS,
            )
            for place in range(self.inputs)
        ]
        self._methods = [env.quantization.linear_method(name, names) for _ in self._shapes]
        self.shape = self._shapes[0]

    def load(self, weights: Weights) -> None:
        bias = all(weights.has(f"{part.name}.bias") for part in self.shape.parts)
        bias = bias and weights.names() is not None  # a dummy has whatever is asked for
        self._shapes = [replace(shape, bias=bias) for shape in self._shapes]
        for method, shape in zip(self._methods, self._shapes, strict=True):
            method.load(LayerWeights(weights, shape))

    def update(self, weights: Weights) -> None:
        for method, shape in zip(self._methods, self._shapes, strict=True):
            method.update(LayerWeights(weights, shape))

    def claims(self) -> Iterator[str]:
        yield from claim_tensors(replace(self.shape, bias=True), self._methods[0].suffixes())

    def __call__(self, inputs: Sequence[Tensor], step: AttendingStep) -> Tensor:
        products = (method.apply(x, step) for method, x in zip(self._methods, inputs, strict=True))
        y = next(products)
        for product in products:
            y = self._ops.add_gated(y, product, None)
        return y
