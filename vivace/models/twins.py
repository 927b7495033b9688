"""Keys of a configuration that have no effect: of two that say one thing one, and those that the
family does not read. Told where they would change the model.

The other one is read like the one that counts, so nonsense is refused in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.checkpoint.fields import ConfigFields, FieldKind, Object, abbreviate
from vivace.models.config_fields import TABLE, EndIds, ModelFields, is_no_window
from vivace.models.rope import (
    KINDS,
    LENGTH,
    ORIGINAL,
    PART,
    READ_ORIGINAL,
    SHARE,
    THETA,
    RotatedHead,
    idle_parts,
    read_rope,
    rope_by_layer,
    rope_objects,
    rope_of_layers,
    with_scaling,
)

OWN_MEANING = ("model_type",)
"""keys that mean the whole model at the top, and its language model in `text_config`"""


def twin_notices(config: ModelFields, head: RotatedHead, context: int) -> Iterator[str]:
    """A notice for each key that has no effect because another says something else. Raises
    SourceError for one that is not what it may be."""
    yield from twin_dtypes(config)
    if rope_by_layer(config) is not None:
        yield from twin_ropes_by_layer(config, head, context)
    else:
        yield from twin_ropes(config, head, context)
    yield from twins_of_the_text_config(config)


def twin_dtypes(config: ModelFields) -> Iterator[str]:
    spellings = config.spelled("dtype", "torch_dtype")
    if len(spellings) > 1:
        yield from differing(config, spellings[0], config, spellings[1], TABLE["dtype"])


def twin_ropes(config: ModelFields, head: RotatedHead, context: int) -> Iterator[str]:
    objects = rope_objects(config)
    for given in objects[:1]:
        yield from differing(given, "rope_type", given, "type", KINDS)
        yield from differing(given, "rope_theta", config, "rope_theta", THETA)
        yield from differing(config, ORIGINAL, given, ORIGINAL, LENGTH)
        if head.share is not None:
            yield from differing(given, PART, config, PART, SHARE)
    ropes = [read_rope(config, head, context, given) for given in objects]
    if len(ropes) > 1 and ropes[0] != ropes[1]:
        first, second = config.spelled("rope_scaling", "rope_parameters")
        yield idle(config, first, config, second)
    used = objects[0] if objects else ConfigFields({}, config.place)
    kind = ropes[0].kind if ropes else "default"
    yield from idle_rope_keys((used, config), kind, context, head)


def twin_ropes_by_layer(config: ModelFields, head: RotatedHead, context: int) -> Iterator[str]:
    nested = config.need_inner("rope_parameters")
    full, local = (rope_of_layers(nested, f"{kind}_attention") for kind in ("full", "sliding"))
    yield from differing(full, "rope_theta", config, "rope_theta", THETA)
    yield from differing(local, "rope_theta", config, "rope_local_base_freq", THETA)
    scaled = with_scaling(config, full)
    if scaled is full and config.has("rope_scaling"):
        read_rope(config, head, context, config.need_inner("rope_scaling"))
        yield idle(config, "rope_parameters", config, "rope_scaling")
    before = read_rope(config, head, context, full)
    if before.scaling and before != read_rope(config, head, context, scaled):
        yield idle(config, "rope_scaling", nested, "full_attention")
    for given in (scaled, local):
        kind = read_rope(config, head, context, given).kind
        yield from idle_rope_keys((given,), kind, context, head)
    yield from idle_rope_keys((config,), "default", context, head)


def idle_rope_keys(
    places: tuple[ConfigFields, ...], kind: str, context: int, head: RotatedHead
) -> Iterator[str]:
    """A notice for each key that a rotary embedding of this kind does not read."""
    for where in idle_parts(*places) if head.share is None else ():
        yield f"{describe(where, PART)}: it has no effect, whole heads are rotated"
    for where in places:
        read = kind in READ_ORIGINAL or where.get(ORIGINAL, LENGTH, context) == context
        if not read:
            yield f"{describe(where, ORIGINAL)}: it has no effect where rope_type is {kind!r}"


def twins_of_the_text_config(config: ModelFields) -> Iterator[str]:
    """`text_config` counts before the object around it, unless the command line gave the key."""
    inner = config.nested
    if inner is None:
        return
    for key, kind in {
        **TABLE,
        PART: SHARE,
        **dict.fromkeys(("rope_scaling", "rope_parameters"), Object()),
        "eos_token_id": EndIds(config.need_known("vocab_size")),
    }.items():
        if key not in (*OWN_MEANING, *config.unread):
            pair = (inner, config.outer)
            first, second = pair[::-1] if key in config.overridden else pair
            yield from differing(first, key, second, key, kind)


def unread_notices(config: ModelFields, windows: tuple[int | None, ...]) -> Iterator[str]:
    """A notice for each key that the family does not read and that would change something."""
    for key in filter(config.whole.has, config.unread):
        if key == "sliding_window" and is_no_window(config.whole.values[key]):
            continue
        value = config.whole.need(key, TABLE[key])
        if not says_the_same(config, key, value, any(windows)):
            family = config.family.model_types[0]
            yield f"{describe(config.whole, key)}: it has no effect on a model of type {family}"


def says_the_same(config: ModelFields, key: str, value: Any, slides: bool) -> bool:
    """Whether the model would be the same if a key that is not read were. `slides`: some layer has
    a window; a length of one that no layer has is told elsewhere."""
    if key in ("attention_bias", "mlp_bias", "bias"):
        return not value
    if key == "norm_topk_prob" and config.family.reads("topk_method"):
        return not value
    if key == "head_dim" and config.family.reads("q_lora_rank"):
        return value == config.need_known("qk_rope_head_dim")
    if key == "use_sliding_window":
        return value or not slides
    if key == "max_window_layers":
        return not slides
    if key == "sliding_window_pattern":
        return not slides or value == config.family.full_every
    if key == "layer_types":
        return not any(value)
    if key in ("hidden_act", "hidden_activation"):
        return value == config.get_known(config.family.activation)
    return False


def differing(
    used: ConfigFields, key: str, other: ConfigFields, other_key: str, kind: FieldKind[Any]
) -> Iterator[str]:
    """A notice where both are given and mean different things."""
    both = used.has(key) and other.has(other_key)
    if both and used.need(key, kind) != other.need(other_key, kind):
        yield idle(used, key, other, other_key)


def idle(used: ConfigFields, key: str, other: ConfigFields, other_key: str) -> str:
    said = abbreviate(used.values.get(key))
    return f"{describe(other, other_key)}: it has no effect, because {used.place(key)} says {said}"


def describe(where: ConfigFields, key: str) -> str:
    return f"{where.place(key)} is {abbreviate(where.values.get(key))}"
