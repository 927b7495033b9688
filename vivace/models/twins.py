"""Keys of a configuration that say one thing twice: which counts, told where they differ.

The other one is read like the one that counts, so nonsense is refused in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.checkpoint.fields import ConfigFields, FieldKind, Number, abbreviate
from vivace.models.config_fields import TABLE, ModelFields
from vivace.models.families import Family
from vivace.models.rope import (
    KINDS,
    LENGTH,
    THETA,
    read_rope,
    rope_by_layer,
    rope_objects,
    rope_of_layers,
    with_scaling,
)

ROPE_KEYS: dict[str, FieldKind[Any]] = {
    "rope_theta": THETA,
    "partial_rotary_factor": Number(0, 1),
    "original_max_position_embeddings": LENGTH,
}
"""what may stand within `rope_parameters` or beside it"""
OWN_MEANING = ("model_type", "tie_word_embeddings")
"""keys that mean the whole model at the top, and its language model in `text_config`"""


def twin_notices(config: ModelFields, family: Family, head_dim: int, context: int) -> Iterator[str]:
    """A notice for each key that has no effect because another says something else. Raises
    SourceError for one that is not what it may be."""
    yield from twin_dtypes(config)
    used = family.activation[0]
    for other in {"hidden_act", "hidden_activation"} - {used}:
        yield from differing(config, used, config, other, TABLE[used])
    if rope_by_layer(config) is not None:
        yield from twin_ropes_by_layer(config, head_dim, context)
    else:
        yield from twin_ropes(config, head_dim, context)
    yield from twins_of_the_text_config(config)


def twin_dtypes(config: ModelFields) -> Iterator[str]:
    spellings = config.spelled("dtype", "torch_dtype")
    if len(spellings) > 1:
        yield from differing(config, spellings[0], config, spellings[1], TABLE["dtype"])


def twin_ropes(config: ModelFields, head_dim: int, context: int) -> Iterator[str]:
    objects = rope_objects(config)
    for given in objects[:1]:
        yield from differing(given, "rope_type", given, "type", KINDS)
        for key, kind in ROPE_KEYS.items():
            yield from differing(given, key, config, key, kind)
    ropes = [read_rope(config, head_dim, context, given) for given in objects]
    if len(ropes) > 1 and ropes[0] != ropes[1]:
        first, second = config.spelled("rope_scaling", "rope_parameters")
        yield idle(config, first, config, second)


def twin_ropes_by_layer(config: ModelFields, head_dim: int, context: int) -> Iterator[str]:
    nested = config.need_inner("rope_parameters")
    full, local = (rope_of_layers(nested, f"{kind}_attention") for kind in ("full", "sliding"))
    yield from differing(full, "rope_theta", config, "rope_theta", THETA)
    yield from differing(local, "rope_theta", config, "rope_local_base_freq", THETA)
    scaled = with_scaling(config, full)
    if scaled is full and config.has("rope_scaling"):
        read_rope(config, head_dim, context, config.need_inner("rope_scaling"))
        yield idle(config, "rope_parameters", config, "rope_scaling")
    before = read_rope(config, head_dim, context, full)
    if before.scaling and before != read_rope(config, head_dim, context, scaled):
        yield idle(config, "rope_scaling", nested, "full_attention")


def twins_of_the_text_config(config: ModelFields) -> Iterator[str]:
    """`text_config` counts before the object around it, unless the command line gave the key."""
    inner = config.nested
    if inner is None:
        return
    for key, kind in {**TABLE, **ROPE_KEYS}.items():
        if key not in OWN_MEANING:
            pair = (inner, config.outer)
            first, second = pair[::-1] if key in config.overridden else pair
            yield from differing(first, key, second, key, kind)


def differing(
    used: ConfigFields, key: str, other: ConfigFields, other_key: str, kind: FieldKind[Any]
) -> Iterator[str]:
    """A notice where both are given and mean different things."""
    both = used.has(key) and other.has(other_key)
    if both and used.need(key, kind) != other.need(other_key, kind):
        yield idle(used, key, other, other_key)


def idle(used: ConfigFields, key: str, other: ConfigFields, other_key: str) -> str:
    return (
        f"{other.place(other_key)} is {abbreviate(other.values.get(other_key))}: it has no effect, "
        f"because {used.place(key)} says {abbreviate(used.values.get(key))}"
    )
