"""Which layers of a model keep a state in the place of keys and values, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.models.attention_shapes import LinearAttention
from vivace.models.config_fields import ModelFields
from vivace.models.head_facts import MOST_PROJECTED


@dataclass(frozen=True)
class RecurrentFacts:
    """`layers`: which keep one; the others attend."""

    shape: LinearAttention
    layers: tuple[bool, ...]


def read_recurrent(config: ModelFields, linear: list[bool]) -> RecurrentFacts | None:
    """None where no layer is `linear`. Raises SourceError naming the bad key."""
    if not config.family.reads("linear_num_value_heads") or not any(linear):
        return None
    if config.get_known("hidden_act") != "silu":  # the convolution in front goes through it, too
        raise config.unsupported("hidden_act", "beside recurrent layers only silu is supported")
    parts = "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim"
    keys, values, *sizes = (config.get_known(f"linear_{part}") for part in parts)
    if values % keys or max(keys * sizes[0], values * sizes[1]) > MOST_PROJECTED:
        why = f"{keys} key heads must divide it, and heads have at most {MOST_PROJECTED} numbers"
        raise config.refusal("linear_num_value_heads", why)
    names = "key_heads", "value_heads", "key_dim", "value_dim", "window"
    shape = LinearAttention(**dict(zip(names, (keys, values, *sizes), strict=True)))
    return RecurrentFacts(shape, tuple(linear))
