"""Tables of rotary embedding: cosines and sines of every position, with the families' scalings.

Sources: Su et al. 2021; YaRN (Peng et al. 2023); Llama 3.1's frequency scaling; dynamic NTK.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vivace.layers.module import Bindings, Module, Weights

Frequencies = tuple[Tensor, float]
"""inverse frequencies[rot / 2] in float32, and the factor on cosines and sines"""


LARGEST_TABLE = 8 << 30
"""bytes"""


class RotaryTable(Module):
    """cos_sin[positions, rot], float32: cosines in the first half, sines in the second."""

    cos_sin: Tensor

    def __init__(
        self, rotated: int, theta: float, positions: int, scaling: dict[str, Any] | None
    ) -> None:
        if positions * rotated * 4 > LARGEST_TABLE:
            raise ValueError(
                f"a rotary table of {positions} positions needs more than {LARGEST_TABLE >> 30} "
                "GiB; serve a smaller --context-length"
            )
        self.positions = positions
        self.frequencies = inverse_frequencies(rotated, theta, positions, scaling)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._device = env.device

    def load(self, weights: Weights) -> None:
        inverse, factor = self.frequencies
        angles = torch.outer(torch.arange(self.positions, dtype=torch.float32), inverse)
        table = torch.cat((angles.cos() * factor, angles.sin() * factor), dim=-1)
        self.cos_sin = table.to(self._device)


def rotary_table(config: dict[str, Any], head_dim: int, positions: int) -> RotaryTable:
    """The table a configuration asks for (`rope_parameters`, or `rope_theta` and `rope_scaling`).

    `positions` is how many are served; `max_position_embeddings` stays the model's own.
    """
    scaling = rope_scaling(config)
    rotated = int(head_dim * float(scaling.get("partial_rotary_factor", 1.0)))
    return RotaryTable(
        rotated, float(scaling["rope_theta"]), positions, {**scaling, "model": config}
    )


def rope_scaling(config: dict[str, Any]) -> dict[str, Any]:
    """Both spellings of the configuration as one: rope_type, rope_theta and the scaling's keys."""
    nested = config.get("rope_parameters")
    scaling = dict(nested if isinstance(nested, dict) else config.get("rope_scaling") or {})
    scaling.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    scaling.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    scaling.setdefault("rope_type", scaling.get("type", "default"))
    return scaling


def inverse_frequencies(
    rotated: int, theta: float, positions: int, scaling: dict[str, Any] | None
) -> Frequencies:
    """Dispatch on `rope_type`. Raises ValueError on one that is not known."""
    scaling = scaling or {"rope_type": "default"}
    kind = str(scaling.get("rope_type", "default"))
    if kind not in SCALINGS:
        raise ValueError(f"rope scaling {kind!r} is not supported; known: {', '.join(SCALINGS)}")
    return SCALINGS[kind](rotated, theta, positions, scaling)


def plain(rotated: int, theta: float, positions: int, scaling: dict[str, Any]) -> Frequencies:
    return 1.0 / theta ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated), 1.0


def linear(rotated: int, theta: float, positions: int, scaling: dict[str, Any]) -> Frequencies:
    inverse, factor = plain(rotated, theta, positions, scaling)
    return inverse / float(scaling["factor"]), factor


def dynamic(rotated: int, theta: float, positions: int, scaling: dict[str, Any]) -> Frequencies:
    """NTK-aware scaling, fixed for the served length (so that KV never has to be rewritten)."""
    original = int(original_length(scaling, positions))
    factor, length = float(scaling["factor"]), max(positions, original)
    stretch = (factor * length / original) - (factor - 1)
    return plain(rotated, theta * stretch ** (rotated / (rotated - 2)), positions, scaling)


def given_factors(
    rotated: int, theta: float, positions: int, scaling: dict[str, Any]
) -> Frequencies:
    """One divisor per frequency, as GGUF files carry them."""
    inverse, factor = plain(rotated, theta, positions, scaling)
    factors = torch.tensor(scaling["factors"], dtype=torch.float32)
    if factors.shape != inverse.shape:
        raise ValueError(f"{len(factors)} rotary factors for {len(inverse)} frequencies")
    return inverse / factors, factor


def llama3(rotated: int, theta: float, positions: int, scaling: dict[str, Any]) -> Frequencies:
    """Long wavelengths divided by `factor`, short ones kept, a ramp between."""
    inverse, _ = plain(rotated, theta, positions, scaling)
    factor, original = float(scaling["factor"]), original_length(scaling, positions)
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / inverse
    ramp = (original / wavelength - low) / (high - low)
    blended = (1 - ramp) * inverse / factor + ramp * inverse
    scaled = torch.where(wavelength > original / low, inverse / factor, inverse)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, scaled), 1.0


def yarn(rotated: int, theta: float, positions: int, scaling: dict[str, Any]) -> Frequencies:
    original = original_length(scaling, positions)
    longest = float(scaling.get("model", {}).get("max_position_embeddings", positions))
    factor = float(scaling.get("factor") or longest / original)
    fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)

    def dimension(rotations: float) -> float:
        return rotated * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    high = high + 0.001 if low == high else high
    ramp = ((torch.arange(rotated // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inverse, _ = plain(rotated, theta, positions, scaling)
    return inverse / factor * ramp + inverse * (1 - ramp), yarn_attention(scaling, factor)


def yarn_attention(scaling: dict[str, Any], factor: float) -> float:
    """The factor on cosines and sines (the paper's temperature)."""

    def scale(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    part, whole = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return scale(float(part)) / scale(float(whole)) if part and whole else scale(1.0)


def longrope(rotated: int, theta: float, positions: int, scaling: dict[str, Any]) -> Frequencies:
    """One divisor per frequency; the long list when more is served than was trained with.

    Fixed for the served length, like `dynamic`.
    """
    original = original_length(scaling, positions)
    key = "long_factor" if positions > original else "short_factor"
    inverse, _ = given_factors(rotated, theta, positions, {"factors": scaling[key]})
    if scaling.get("attention_factor") is not None:
        return inverse, float(scaling["attention_factor"])
    longest = float(scaling.get("model", {}).get("max_position_embeddings", positions))
    factor = float(scaling.get("factor") or longest / original)
    return inverse, math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def original_length(scaling: dict[str, Any], positions: int) -> float:
    """The context the model was trained with before it was stretched."""
    model = scaling.get("model", {})
    return float(
        scaling.get("original_max_position_embeddings")
        or model.get("original_max_position_embeddings")
        or model.get("max_position_embeddings", positions)
    )


SCALINGS: dict[str, Callable[[int, float, int, dict[str, Any]], Frequencies]] = {
    "default": plain,
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
    "su": longrope,
    "factors": given_factors,
}
