"""What Llama 4 says of its layers: which of them know positions, see a chunk, have experts."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.models.config_fields import ModelFields


@dataclass(frozen=True, kw_only=True)
class TemperatureFacts:
    """Queries of layers without rotary embedding are multiplied with
    log(1 + floor((position + 1) / floor)) * scale + 1 (Nakanishi 2025, arXiv 2501.19399)."""

    floor: float
    scale: float


@dataclass(frozen=True, kw_only=True)
class Llama4Facts:
    rotated: tuple[bool, ...]
    """which layers have rotary embedding"""
    chunks: tuple[int | None, ...]
    """of each layer: a query sees its own chunk of so many positions; None: all before it"""
    temperature: TemperatureFacts | None


def read_llama4(config: ModelFields, local: list[bool]) -> Llama4Facts | None:
    """`local`: which layers attend within chunks. None: another family. Raises SourceError naming
    the bad key."""
    if not config.family.reads("no_rope_layers"):
        return None
    chunk = config.get_known("attention_chunk_size")
    temperature = None
    if config.get_known("attn_temperature_tuning"):
        floor, scale = config.get_known("floor_scale"), config.get_known("attn_scale")
        temperature = TemperatureFacts(floor=floor, scale=scale)
    return Llama4Facts(
        rotated=rotated_layers(config, len(local)),
        chunks=tuple(chunk if one else None for one in local),
        temperature=temperature,
    )


def rotated_layers(config: ModelFields, layers: int) -> tuple[bool, ...]:
    """Listed (1: it has rotary embedding), or all but every `no_rope_layer_interval`-th."""
    listed = config.get_known("no_rope_layers")
    if not listed:
        every = config.get_known("no_rope_layer_interval")
        return tuple((index + 1) % every != 0 for index in range(layers))
    if len(listed) < layers:
        raise config.refusal("no_rope_layers", f"there are {layers} layers")
    return tuple(bool(one) for one in listed[:layers])


def read_width(config: ModelFields) -> int:
    """Inside of an MLP; in Llama 4 `intermediate_size` is that of an expert."""
    width = config.need_known("intermediate_size")
    return config.get_known("intermediate_size_mlp") or width
