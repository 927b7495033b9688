"""Tables of rotary embedding: cosines and sines of every position, with the families' scalings.

Sources: Su et al. 2021; YaRN (Peng et al. 2023); Llama 3.1's frequency scaling; dynamic NTK.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivace.checkpoint.weights import Weights
from vivace.errors import CannotStart
from vivace.layers.module import Bindings, Module
from vivace.platforms.host import HOST, download, upload

Frequencies = tuple[Tensor, float]
"""inverse frequencies[rot / 2] in float32, and the factor on cosines and sines"""
Scaling = Mapping[str, Any]
"""what a kind of scaling needs, checked and complete (see `models.rope`)"""

LARGEST_TABLE = 8 << 30
"""bytes"""
ROWS_AT_ONCE = 1 << 16


class RotaryTable(Module):
    """cos_sin[positions, rotated], float32: cosines in the first half, sines in the second.

    `positions` is the served context, for which scalings are chosen; rows are only made for what
    the device can hold.
    """

    cos_sin: Tensor

    def __init__(
        self,
        rotated: int,
        theta: float,
        positions: int,
        kind: str = "default",
        scaling: Scaling | None = None,
    ) -> None:
        self.positions = positions
        self.rotated = rotated
        self.frequencies = SCALINGS[kind](rotated, theta, positions, scaling or {})

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._device = env.device
        self._rows = min(self.positions, env.longest or self.positions)
        if self._rows * self.rotated * 4 > LARGEST_TABLE:
            raise CannotStart(
                f"a rotary table of {self._rows} positions needs more than {LARGEST_TABLE >> 30} "
                "GiB; serve a smaller --context-length"
            )

    def load(self, weights: Weights) -> None:
        inverse, factor = self.frequencies
        table = torch.empty(self._rows, self.rotated)
        for start in range(0, self._rows, ROWS_AT_ONCE):
            rows = table[start : start + ROWS_AT_ONCE]
            places = torch.arange(start, start + len(rows), dtype=torch.float32)
            angles = torch.outer(places, inverse)
            torch.mul(cosines_and_sines(angles), factor, out=rows)
        self.cos_sin = table.to(self._device)


def cosines_and_sines(angles: Tensor) -> Tensor:
    """[..., n] -> [..., 2 n] float32, rounded from float64. Not by torch: of large tensors MKL
    sometimes computes a thread's share with half of the bits, in one start of ten (seen with torch
    2.13), and then the tokens are others than before."""
    precise = download(angles).astype(np.float64)
    both = np.concatenate((np.cos(precise), np.sin(precise)), axis=-1)
    return upload(both.astype(np.float32), HOST)


class PositionScales(Module):
    """factors[positions] float32: log(1 + floor((position + 1) / floor)) * scale + 1, with which
    queries are multiplied (Llama 4's temperature tuning). As many as `RotaryTable` has."""

    factors: Tensor

    def __init__(self, positions: int, floor: float, scale: float) -> None:
        self.positions = positions
        self.floor = floor
        self.scale = scale

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._device = env.device
        self._rows = min(self.positions, env.longest or self.positions)

    def load(self, weights: Weights) -> None:
        counts = np.arange(1, self._rows + 1, dtype=np.float32)
        factors = np.log1p(np.floor(counts / np.float32(self.floor)).astype(np.float64))
        self.factors = upload((factors * self.scale + 1).astype(np.float32), self._device)

    def update(self, weights: Weights) -> None:
        """They are no weights."""


def plain(rotated: int, theta: float, positions: int, scaling: Scaling) -> Frequencies:
    return 1.0 / theta ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated), 1.0


def linear(rotated: int, theta: float, positions: int, scaling: Scaling) -> Frequencies:
    inverse, factor = plain(rotated, theta, positions, scaling)
    return inverse / scaling["factor"], factor


def dynamic(rotated: int, theta: float, positions: int, scaling: Scaling) -> Frequencies:
    """NTK-aware scaling, fixed for the served length (so that KV never has to be rewritten)."""
    original, factor = int(scaling["original"]), scaling["factor"]
    stretch = (factor * max(positions, original) / original) - (factor - 1)
    return plain(rotated, theta * stretch ** (rotated / (rotated - 2)), positions, scaling)


def given_factors(rotated: int, theta: float, positions: int, scaling: Scaling) -> Frequencies:
    """One divisor per frequency, as GGUF files carry them."""
    inverse, factor = plain(rotated, theta, positions, scaling)
    return inverse / torch.tensor(scaling["factors"], dtype=torch.float32), factor


def llama3(rotated: int, theta: float, positions: int, scaling: Scaling) -> Frequencies:
    """Long wavelengths divided by `factor`, short ones kept, a ramp between."""
    inverse, _ = plain(rotated, theta, positions, scaling)
    factor, original = scaling["factor"], scaling["original"]
    low, high = scaling["low"], scaling["high"]
    wavelength = 2 * math.pi / inverse
    ramp = (original / wavelength - low) / (high - low or 1.0)  # equal: there is nothing between
    blended = (1 - ramp) * inverse / factor + ramp * inverse
    scaled = torch.where(wavelength > original / low, inverse / factor, inverse)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, scaled), 1.0


def yarn(rotated: int, theta: float, positions: int, scaling: Scaling) -> Frequencies:
    factor, original = scaling["factor"], scaling["original"]

    def dimension(rotations: float) -> float:
        return rotated * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling["beta_fast"]), dimension(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    high = high + 0.001 if low == high else high
    ramp = ((torch.arange(rotated // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inverse, _ = plain(rotated, theta, positions, scaling)
    return inverse / factor * ramp + inverse * (1 - ramp), scaling["attention_factor"]


def longrope(rotated: int, theta: float, positions: int, scaling: Scaling) -> Frequencies:
    """One divisor per frequency; the long list when more is served than was trained with.

    Fixed for the served length, like `dynamic`.
    """
    key = "long_factor" if positions > scaling["original"] else "short_factor"
    inverse, _ = given_factors(rotated, theta, positions, {"factors": scaling[key]})
    return inverse, scaling["attention_factor"]


SCALINGS: dict[str, Callable[[int, float, int, Scaling], Frequencies]] = {
    "default": plain,
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
    "factors": given_factors,
}
