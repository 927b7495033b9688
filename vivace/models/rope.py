"""What a configuration says about rotary embedding, checked and complete. Torch-free.

Both spellings are read: `rope_parameters`, and `rope_theta` beside `rope_scaling`. Where a file has
both, `rope_scaling` counts, as in transformers; `twins` tells what has no effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from vivace.checkpoint.fields import ConfigFields, Flag, Integer, ListOf, Number, OneOf

LONGEST_CONTEXT = 1 << 25
"""tokens; three times the longest that anybody has published"""
LARGEST_HEAD = 4096
LENGTH = Integer(2, LONGEST_CONTEXT)
FACTOR = Number(1, 1e6)
THETA = Number(2, 1e15)
POSITIVE = Number(1e-3, 1e6)
SHARE = Number(0, 1)
PART = "partial_rotary_factor"
ORIGINAL = "original_max_position_embeddings"
STRETCHING = ("linear", "dynamic")
"""kinds whose `max_position_embeddings` is the length before the factor for some authors (vicuna's
16k models), and the length behind it for others (deepseek-coder)"""
COUNTED = ("gemma3", "gemma3_text")
"""model types whose authors mean the length behind it"""
KINDS_OF_LAYERS = ("full_attention", "sliding_attention")
READ_ORIGINAL = ("llama3", "yarn", "longrope")
KINDS = OneOf(
    {
        "default": "default",
        "linear": "linear",
        "dynamic": "dynamic",
        "llama3": "llama3",
        "yarn": "yarn",
        "longrope": "longrope",
        "su": "longrope",
        "factors": "factors",
    }
)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """`rotated`: numbers of each head that are turned, an even count. `scaling`: what
    `layers.rotary` needs for `kind`, without gaps."""

    kind: str = "default"
    theta: float = 10000.0
    rotated: int
    scaling: dict[str, float | bool | list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class RotatedHead:
    """A head as rotary embedding sees it."""

    size: int
    share: float | None = None
    """how much of it is turned where the configuration does not say it; None: always all of it"""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A scaling that may be for more than the configuration's context: `longest` tokens. `place`:
    that of its factor, for messages."""

    place: str
    kind: str
    factor: float
    longest: int


def read_stretch(
    config: ConfigFields, context: int, model_type: str, kinds: tuple[str, ...] = STRETCHING
) -> Stretch | None:
    """Where the configuration does not say what the context was before. SGLang multiplies it by the
    factor there (`get_context_length`), which makes four times too much of deepseek-coder's."""
    given = next(iter(rope_objects(config)), None)
    if given is None or model_type in COUNTED or config.has(ORIGINAL) or given.has(ORIGINAL):
        return None
    kind = given.values.get("rope_type") or given.values.get("type")
    if kind not in kinds or not given.has("factor"):
        return None
    factor = given.need("factor", FACTOR)
    longest = min(int(factor * context), LONGEST_CONTEXT)
    if longest <= context:
        return None
    return Stretch(place=given.place("factor"), kind=str(kind), factor=factor, longest=longest)


def rope_objects(config: ConfigFields) -> list[ConfigFields]:
    """What is said of rotary embedding in either spelling, the one that counts first."""
    found = [config.need_inner(key) for key in config.spelled("rope_scaling", "rope_parameters")]
    return [one for one in found if one.values]


def rope_by_layer(config: ConfigFields) -> ConfigFields | None:
    """`rope_parameters`, where each kind of layer has its own. Raises SourceError where
    `rope_scaling` has, as transformers fails over it."""
    older, nested = config.inner("rope_scaling"), config.inner("rope_parameters")
    if older is not None and any(map(older.has, KINDS_OF_LAYERS)):
        raise config.refusal("rope_scaling", "there one object is for all layers")
    return nested if nested is not None and any(map(nested.has, KINDS_OF_LAYERS)) else None


def rope_of_layers(nested: ConfigFields, kind: str) -> ConfigFields:
    """What `rope_parameters` has for one kind of layer."""
    return nested.inner(kind) or ConfigFields({}, nested.place)


def with_scaling(config: ConfigFields, full: ConfigFields) -> ConfigFields:
    """`full` of `rope_parameters`, with what `rope_scaling` says, as in transformers."""
    scaling = config.inner("rope_scaling")
    if scaling is None or config.spelled("rope_scaling", "rope_parameters")[0] != "rope_scaling":
        return full
    return ConfigFields(
        {**full.values, **scaling.values},
        lambda key: (scaling if key in scaling.values else full).place(key),
        full.advice,
    )


def read_rope(
    config: ConfigFields,
    head: RotatedHead,
    context: int,
    given: ConfigFields | None = None,
    theta: float = Rope.theta,
    *,
    own: bool = False,
) -> Rope:
    """Raises SourceError naming the bad key. `context`: the model's own, in tokens; `given`: the
    object to read instead of `rope_scaling` or `rope_parameters`; `theta`: where none is given;
    `own`: the model's `rope_theta` is of other layers."""
    given = given or next(iter(rope_objects(config)), ConfigFields({}, config.place))
    kind = given.get("rope_type", KINDS, given.get("type", KINDS, "default"))
    rotated = read_rotary_dim(config, given, head, kind)
    if kind == "dynamic" and rotated < 4:
        raise given.refusal("rope_type", "dynamic scaling needs 4 rotated numbers for each head")
    reader = SCALINGS.get(kind)
    scaling = reader(ScalingInput(config, given, rotated // 2, context)) if reader else {}
    base = given.get("rope_theta", THETA, theta) if own else read_theta(config, given, theta)
    return Rope(kind=kind, theta=base, rotated=rotated, scaling=scaling)


def read_theta(config: ConfigFields, given: ConfigFields, default: float) -> float:
    """`given`'s, or else the model's; a scaling that is given in the older spelling beside a file
    of the newer one has it only there."""
    places = (given, config, *rope_objects(config))
    found = [where.need("rope_theta", THETA) for where in places if where.has("rope_theta")]
    return found[0] if found else default


def read_rotary_dim(config: ConfigFields, given: ConfigFields, head: RotatedHead, kind: str) -> int:
    """A GGUF file's `rope_dimension_count`; a part where the family has one; the whole head."""
    if head.share is not None:
        return read_part(config, given, head.size, head.share)
    rotated = config.get("rope_dimension_count", Integer(2, head.size), head.size)
    if rotated % 2:
        raise config.refusal("rope_dimension_count", odd(rotated, head.size))
    for where in idle_parts(given, config):
        if kind != "default":
            why = f"where rope_type is {kind!r} there is no model that rotates a part of its heads"
            raise where.refusal(PART, why)
    return rotated


def read_part(config: ConfigFields, given: ConfigFields, size: int, share: float) -> int:
    """`given`'s, or else the model's, as in transformers."""
    where = next((one for one in (given, config) if one.has(PART)), config)
    rotated = int(size * where.get(PART, SHARE, share))
    if rotated % 2 or not rotated:
        raise where.refusal(PART, odd(rotated, size))
    return rotated


def odd(rotated: int, size: int) -> str:
    return f"{rotated} of the {size} numbers of a head would be rotated, not an even count"


def idle_parts(*places: ConfigFields) -> list[ConfigFields]:
    """Those with a `partial_rotary_factor`: transformers' code for our families rotates whole
    heads, and fails where a scaling is for less."""
    return [where for where in places if where.get(PART, SHARE, 1.0) != 1.0]


@dataclass(frozen=True)
class ScalingInput:
    """What a scaling is read from; `pairs` frequencies."""

    config: ConfigFields
    given: ConfigFields
    pairs: int
    context: int

    def original(self) -> float:
        """The context the model was trained with before it was stretched. What the configuration
        says counts before what its rotary embedding does, as in transformers."""
        return float(
            self.config.get(ORIGINAL, LENGTH, self.given.get(ORIGINAL, LENGTH, self.context))
        )

    def factors(self, key: str) -> list[float]:
        return list(self.given.need(key, ListOf(POSITIVE, self.pairs, self.pairs)))


Scaling = dict[str, float | bool | list[float]]


def linear(source: ScalingInput) -> Scaling:
    return {"factor": source.given.need("factor", FACTOR)}


def dynamic(source: ScalingInput) -> Scaling:
    return {"factor": source.given.need("factor", FACTOR), "original": float(source.context)}


def given_factors(source: ScalingInput) -> Scaling:
    return {"factors": source.factors("factors")}


def llama3(source: ScalingInput) -> Scaling:
    given = source.given
    low, high = given.need("low_freq_factor", POSITIVE), given.need("high_freq_factor", POSITIVE)
    if low > high:
        raise given.refusal("low_freq_factor", f"high_freq_factor is {high:g}, less than that")
    factor = given.need("factor", FACTOR)
    return {"factor": factor, "low": low, "high": high, "original": source.original()}


def yarn(source: ScalingInput) -> Scaling:
    given, original = source.given, source.original()
    factor = given.get("factor", FACTOR, max(source.context / original, 1.0))
    fast, slow = given.get("beta_fast", POSITIVE, 32.0), given.get("beta_slow", POSITIVE, 1.0)
    if slow > fast:
        raise given.refusal("beta_slow", f"it must be at most beta_fast, {fast:g}")
    return {
        "factor": factor,
        "original": original,
        "beta_fast": fast,
        "beta_slow": slow,
        "truncate": given.get("truncate", Flag(), True),
        "attention_factor": yarn_attention(given, factor),
    }


def yarn_attention(given: ConfigFields, factor: float) -> float:
    """The factor on cosines and sines (the paper's temperature)."""

    def scale(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    part, whole = given.find("mscale", Number(0, 100)), given.find("mscale_all_dim", Number(0, 100))
    computed = scale(part) / scale(whole) if part and whole else scale(1.0)
    computed *= given.get("attn_factor", POSITIVE, 1.0)
    return given.get("attention_factor", POSITIVE, computed)


def longrope(source: ScalingInput) -> Scaling:
    given, original = source.given, source.original()
    factor = given.get("factor", FACTOR, max(source.context / original, 1.0))
    stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "original": original,
        "short_factor": source.factors("short_factor"),
        "long_factor": source.factors("long_factor"),
        "attention_factor": given.get("attention_factor", POSITIVE, stretched),
    }


SCALINGS: dict[str, Any] = {
    "linear": linear,
    "dynamic": dynamic,
    "factors": given_factors,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
}
