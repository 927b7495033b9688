"""What the rest of the house may know about a model: plain values from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vivace.checkpoint.source import ModelSource, SourceError

WINDOWLESS = ("llama",)
"""families whose definition ignores `sliding_window`"""
MOST_LAYERS = 4096
DTYPES = ("bfloat16", "float16", "float32")
WHOLE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Shapes in elements, `context` in tokens; `layer_windows` has one entry per layer."""

    architecture: str
    model_type: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary: int
    context: int
    dtype: str
    tied: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    sliding_window: int | None
    layer_windows: tuple[int | None, ...]
    parameters: int
    config: dict[str, Any] = field(default_factory=dict)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def facts_of(source: ModelSource) -> ModelFacts:
    """Read the facts from a model's configuration. Raises SourceError naming the bad key."""
    config = text_config(source.config)
    refuse_quantised(source, config)
    for key in WHOLE:
        whole(source, config, key)
    heads = whole(source, config, "num_attention_heads")
    hidden = whole(source, config, "hidden_size")
    tied = bool(config.get("tie_word_embeddings", default_tied(config)))
    windows = layer_windows(config)
    return ModelFacts(
        architecture=architecture_of(source),
        model_type=str(config.get("model_type", "")),
        hidden_size=hidden,
        layers=whole(source, config, "num_hidden_layers"),
        heads=heads,
        kv_heads=whole(source, config, "num_key_value_heads", heads),
        head_dim=whole(source, config, "head_dim", default_head_dim(config, hidden, heads)),
        intermediate_size=whole(source, config, "intermediate_size"),
        vocabulary=whole(source, config, "vocab_size"),
        context=whole(source, config, "max_position_embeddings", 2048),
        dtype=dtype_of(config),
        tied=tied,
        eos_ids=eos_ids(source.generation_config) or eos_ids(config),
        bos_id=config.get("bos_token_id") if isinstance(config.get("bos_token_id"), int) else None,
        sliding_window=next((w for w in windows if w), None),
        layer_windows=windows,
        parameters=parameter_count(config, heads, tied),
        config=config,
    )


def refuse_quantised(source: ModelSource, config: dict[str, Any]) -> None:
    found = config.get("quantization_config") or config.get("compression_config")
    if found and not int8_by_channel(found):
        method = found.get("quant_method") if isinstance(found, dict) else None
        raise SourceError(
            f"{source.path}: the weights are quantised ({method or 'unknown method'}); this "
            "version reads F32, F16 and BF16 safetensors, int8 ones with a scale for each output "
            "channel (w8a8_int8), and quantised GGUF files: use one of those"
        )


def int8_by_channel(found: Any) -> bool:
    """Whether a `quantization_config` describes int8 weights with one scale for each output
    channel, and activations that need no numbers from the checkpoint."""
    if not isinstance(found, dict):
        return False
    if found.get("quant_method") == "w8a8_int8":
        return True
    groups = found.get("config_groups")
    if found.get("format") != "int-quantized" or not isinstance(groups, dict):
        return False
    wanted = {"num_bits": 8, "type": "int", "symmetric": True}
    parts = [
        (group.get("weights"), group.get("input_activations"))
        for group in groups.values()
        if isinstance(group, dict)
    ]
    return bool(parts) and all(
        has(weights, {**wanted, "strategy": "channel"})
        and (inputs is None or has(inputs, {**wanted, "strategy": "token", "dynamic": True}))
        for weights, inputs in parts
    )


def has(found: Any, wanted: dict[str, Any]) -> bool:
    return isinstance(found, dict) and all(found.get(key) == wanted[key] for key in wanted)


def default_head_dim(config: dict[str, Any], hidden: int, heads: int) -> int:
    """What a configuration without `head_dim` means."""
    family = {"gemma2": 256, "gemma3": 256, "gemma3_text": 256, "qwen3": 128}
    return family.get(str(config.get("model_type", "")), max(hidden // heads, 1))


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration that nests it."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def architecture_of(source: ModelSource) -> str:
    names = source.config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise SourceError(f"{source.path}: config.json names no `architectures`")
    return names[0]


def whole(source: ModelSource, config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        shown = repr(value)[:80]
        raise SourceError(f"{source.path}: config.json has {key} = {shown}, not a positive number")
    if key == "num_hidden_layers" and value > MOST_LAYERS:
        raise SourceError(f"{source.path}: {value} layers; at most {MOST_LAYERS} can be")
    return value


def dtype_of(config: dict[str, Any]) -> str:
    name = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix(
        "torch."
    )
    return name if name in DTYPES else "bfloat16"


def default_tied(config: dict[str, Any]) -> bool:
    """Gemma ties its embeddings unless it says otherwise; the others say so."""
    return str(config.get("model_type", "")).startswith("gemma")


def eos_ids(config: dict[str, Any]) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)


def layer_windows(config: dict[str, Any]) -> tuple[int | None, ...]:
    """Sliding window of each layer in tokens, None where attention is full."""
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    model_type = str(config.get("model_type", ""))
    unused = config.get("use_sliding_window") is False or model_type in WINDOWLESS
    if not isinstance(window, int) or window < 1 or unused:
        return (None,) * layers
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if model_type.startswith("qwen"):
        first = config.get("max_window_layers", layers)
        wanted = config.get("use_sliding_window") is True
        return tuple(window if wanted and i >= first else None for i in range(layers))
    every = {"gemma2": 2, "gemma3": 6}.get(model_type.removesuffix("_text"), 0)
    every = config.get("sliding_window_pattern") or every
    return tuple(None if every and (i + 1) % every == 0 else window for i in range(layers))


def parameter_count(config: dict[str, Any], heads: int, tied: bool) -> int:
    """Parameters of a dense decoder with gated MLP; norms and biases left out."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    embeddings = config["vocab_size"] * hidden * (1 if tied else 2)
    return config["num_hidden_layers"] * (attention + 3 * hidden * inner) + embeddings
