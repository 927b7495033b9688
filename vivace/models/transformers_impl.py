"""`--model-impl transformers`: architectures Vivace has not written, run by transformers' code.

Only classes that transformers itself ships are built (no code from a model directory); weights go
through our checkpoint readers, attention through our paged backend by way of transformers'
attention interface. Imported only when asked for.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vivace.checkpoint.source import SourceError
from vivace.layers.module import Bindings, Module, Weights
from vivace.layers.step import ModelStep
from vivace.models.facts import ModelFacts
from vivace.platforms.attention import AttentionLayer

ATTENTION = "vivace_paged"
NOT_CONFIG = ("architectures", "torch_dtype", "dtype", "auto_map", "_name_or_path", "model_type")


def declare(facts: ModelFacts, positions: int) -> TransformersModel:
    """The generic model. Raises SourceError when transformers does not know its type."""
    import transformers

    if facts.model_type not in transformers.CONFIG_MAPPING:
        raise SourceError(
            f"transformers {transformers.__version__} has no model type {facts.model_type!r} "
            "(code from a model directory is never run)"
        )
    return TransformersModel(facts, positions)


class TransformersModel(Module):
    """A `Model` around transformers' own classes."""

    network: Any

    def __init__(self, facts: ModelFacts, positions: int) -> None:
        self.facts = facts
        self.positions = positions
        self.attention_layers = [
            AttentionLayer(
                index=index,
                heads=facts.heads,
                kv_heads=facts.kv_heads,
                head_dim=facts.head_dim,
                scale=facts.head_dim**-0.5,
                window=facts.layer_windows[index],
            )
            for index in range(facts.layers)
        ]

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._env = env

    def load(self, weights: Weights) -> None:
        """Build the network without memory, then give it the checkpoint's tensors."""
        import transformers
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, paged_attention)
        keys = {k: v for k, v in self.facts.config.items() if k not in NOT_CONFIG}
        config = transformers.AutoConfig.for_model(self.facts.model_type, **keys)
        network = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=ATTENTION, dtype=self._env.dtype
        )
        tied = {"lm_head.weight"} if self.facts.tied else set()
        tensors = {
            name: weights.take(name, tuple(old.shape)).to(old.dtype)
            for name, old in network.state_dict().items()
            if name not in tied
        }
        network.load_state_dict(tensors, strict=False, assign=True)
        network.tie_weights()
        self.network = network.eval().requires_grad_(False)

    def forward(self, step: ModelStep) -> Tensor:
        """One row of T tokens; which sequence each belongs to is the attention backend's affair."""
        output = self.network.base_model(
            input_ids=step.ids.unsqueeze(0),
            position_ids=step.positions.unsqueeze(0),
            use_cache=False,
            vivace_step=step,
            vivace_layers=self.attention_layers,
        )
        return output.last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.network.get_output_embeddings()(hidden).float()
        cap = self.facts.config.get("final_logit_softcapping")
        return self._env.ops.soft_cap(logits, float(cap)) if cap else logits


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    vivace_step: ModelStep,
    vivace_layers: list[AttentionLayer],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query[1, Hq, T, D], key and value[1, Hk, T, D]."""
    layer = vivace_layers[module.layer_idx]
    shape = AttentionLayer(
        index=layer.index,
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        scale=layer.scale if scaling is None else scaling,
        window=sliding_window,
        soft_cap=softcap,
    )
    q, k, v = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
    attended = vivace_step.attention.attend(shape, q, k, v, vivace_step)
    return attended.view(1, -1, layer.heads, layer.head_dim), None
