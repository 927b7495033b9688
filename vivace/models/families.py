"""How the families of models differ in what their configurations leave unsaid."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """`model_types`: those of one architecture, the first where none is given.

    `head_dim`: None = hidden size / heads. `slides`: whether `sliding_window` means anything.
    `window_by_flag`: layers from `max_window_layers` on slide, if `use_sliding_window` says so.
    `full_every`: every n-th layer attends fully (0: none).
    """

    model_types: tuple[str, ...] = ()
    head_dim: int | None = None
    tied: bool = False
    activation: tuple[str, str] = ("hidden_act", "silu")
    """its key, and the one that is meant when there is none"""
    slides: bool = True
    window_by_flag: bool = False
    full_every: int = 0
    local_rope: bool = False
    """layers with a window turn with a frequency of their own"""
    rope_theta: float = 10000.0
    """of layers that attend fully, where the configuration has none"""
    gemma: bool = False
    """queries are scaled by a number of their own, and scores and logits may be capped"""


_GELU = ("hidden_activation", "gelu_pytorch_tanh")
_GEMMA = Family(head_dim=256, tied=True, activation=_GELU, gemma=True)

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(model_types=("llama",), slides=False),
    "MistralForCausalLM": Family(model_types=("mistral",)),
    "Qwen2ForCausalLM": Family(model_types=("qwen2",), window_by_flag=True),
    "Qwen3ForCausalLM": Family(model_types=("qwen3",), head_dim=128, window_by_flag=True),
    "Gemma2ForCausalLM": replace(_GEMMA, model_types=("gemma2",), full_every=2),
    "Gemma3ForCausalLM": replace(
        _GEMMA,
        model_types=("gemma3_text", "gemma3"),
        full_every=6,
        local_rope=True,
        rope_theta=1e6,
    ),
}
"""architectures that Vivace has written"""
