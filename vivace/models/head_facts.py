"""Heads of attention, with grouped keys or with latents, from a model's configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vivace.checkpoint.fields import Number
from vivace.models.config_fields import TABLE, ModelFields
from vivace.models.rope import LARGEST_HEAD, Rope, RotatedHead, rope_objects

MOST_PROJECTED = 1 << 22
"""numbers of all query heads of a layer"""


@dataclass(frozen=True, kw_only=True)
class LatentFacts:
    """Multi-head latent attention (MLA; DeepSeek-V2, 2024): widths in numbers."""

    q_rank: int
    """of what queries are made of; 0: they are made of hidden states"""
    kv_rank: int
    """of a token's latent"""
    nope: int
    """of a head's query and key that are not rotated"""
    rope: int
    """of those that are; of a key the same for all heads"""
    value: int
    interleaved: bool
    """the checkpoint rotates neighbors (0, 1), (2, 3) ..., not halves"""


@dataclass(frozen=True, kw_only=True)
class HeadFacts:
    heads: int
    kv_heads: int
    """1 where all heads share a latent"""
    head_dim: int
    """of a query"""
    rotated: RotatedHead
    latent: LatentFacts | None = None


def read_heads(config: ModelFields) -> HeadFacts:
    """Raises SourceError naming the bad key."""
    heads = config.need_known("num_attention_heads")
    if config.family.reads("q_lora_rank"):
        return read_latent_heads(config, heads)
    kv_heads = config.get_known("num_key_value_heads") or heads
    if heads % kv_heads:
        why = f"{kv_heads} heads of keys must divide the {heads} attention heads"
        raise config.refusal("num_key_value_heads", why)
    hidden, head_dim = config.need_known("hidden_size"), config.get_known("head_dim")
    if head_dim is None:
        if hidden % heads:
            why = f"without head_dim it must be a multiple of the {heads} attention heads"
            raise config.refusal("hidden_size", why)
        head_dim = hidden // heads
    check_projected(config, heads, head_dim)
    rotated = RotatedHead(head_dim, config.family.rotated_share)
    return HeadFacts(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotated=rotated)


def read_latent_heads(config: ModelFields, heads: int) -> HeadFacts:
    if config.get("num_key_value_heads", TABLE["num_key_value_heads"], heads) != heads:
        why = f"all {heads} attention heads have keys of their own, made of one latent"
        raise config.refusal("num_key_value_heads", why)
    latent = LatentFacts(
        q_rank=config.get_known("q_lora_rank") or 0,
        kv_rank=config.need_known("kv_lora_rank"),
        nope=config.need_known("qk_nope_head_dim"),
        rope=config.need_known("qk_rope_head_dim"),
        value=config.need_known("v_head_dim"),
        interleaved=config.get_known("rope_interleave") is not False,
    )
    if latent.rope % 2:
        raise config.refusal("qk_rope_head_dim", "pairs of numbers are rotated: an even count")
    check_projected(config, heads, latent.nope + latent.rope)
    check_projected(config, heads, latent.value)
    return HeadFacts(
        heads=heads,
        kv_heads=1,
        head_dim=latent.nope + latent.rope,
        rotated=RotatedHead(latent.rope),
        latent=latent,
    )


def check_projected(config: ModelFields, heads: int, head_dim: int) -> None:
    if head_dim % 2 or head_dim > LARGEST_HEAD or heads * head_dim > MOST_PROJECTED:
        why = f"{heads} heads of {head_dim} numbers: heads are even and at most {LARGEST_HEAD} "
        raise config.refusal("num_attention_heads", why + f"and {MOST_PROJECTED} together")


def read_query_scale(config: ModelFields, found: HeadFacts, rope: Rope) -> float:
    """What scores are multiplied with before the softmax."""
    scale = (config.get_known("query_pre_attn_scalar") or found.head_dim) ** -0.5
    return scale if found.latent is None else scale * latent_factor(config, rope) ** 2


def latent_factor(config: ModelFields, rope: Rope) -> float:
    """YaRN's temperature on queries and on keys, `mscale_all_dim` (DeepSeek-V2)."""
    given = next(iter(rope_objects(config)), None)
    weight = given.find("mscale_all_dim", Number(0, 100)) if given is not None else None
    if given is None or rope.kind == "default" or not weight:
        return 1.0
    factor = rope.scaling.get("factor") or given.need("factor", Number(1, 1e6))
    assert isinstance(factor, float)
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
