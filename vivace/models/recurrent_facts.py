"""Which layers of a model keep a state in the place of keys and values, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.models.attention_shapes import LinearAttention
from vivace.models.config_fields import ModelFields


@dataclass(frozen=True, kw_only=True)
class RecurrentFacts:
    """Of a model with gated delta layers (Qwen3-Next)."""

    shape: LinearAttention
    layers: tuple[bool, ...]
    """which layers; the others attend"""


def read_recurrent(config: ModelFields, linear: list[bool]) -> RecurrentFacts | None:
    """`linear`: which layers do not attend fully. None where none has a state. Raises SourceError
    naming the bad key."""
    if not config.family.reads("linear_num_value_heads") or not any(linear):
        return None
    if config.get_known("hidden_act") != "silu":  # the convolution in front goes through it, too
        raise config.unsupported("hidden_act", "beside recurrent layers only silu is supported")
    keys, values = (config.get_known(f"linear_num_{part}_heads") for part in ("key", "value"))
    if values % keys:
        raise config.refusal(
            "linear_num_value_heads", f"the {keys} key heads (linear_num_key_heads) must divide it"
        )
    shape = LinearAttention(
        key_heads=keys,
        value_heads=values,
        key_dim=config.get_known("linear_key_head_dim"),
        value_dim=config.get_known("linear_value_head_dim"),
        window=config.get_known("linear_conv_kernel_dim"),
    )
    return RecurrentFacts(shape=shape, layers=tuple(linear))
