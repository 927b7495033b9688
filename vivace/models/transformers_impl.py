"""`--model-impl transformers`: architectures Vivace has not written, run by transformers' code.

Only classes that transformers itself ships are built (no code from a model directory); weights go
through our checkpoint readers, attention through our paged backend by way of transformers'
attention interface. Imported only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vivace.checkpoint.source import SourceError
from vivace.layers.module import Bindings, Module, Weights
from vivace.layers.step import ModelStep
from vivace.models.facts import ModelFacts
from vivace.platforms.attention import AttentionLayer

ATTENTION = "vivace_paged"
NOT_CONFIG = ("architectures", "torch_dtype", "dtype", "auto_map", "_name_or_path", "model_type")


def declare(facts: ModelFacts) -> TransformersModel:
    """The generic model. Raises SourceError when transformers does not know its type."""
    import transformers

    if facts.model_type not in transformers.CONFIG_MAPPING:
        raise SourceError(
            f"transformers {transformers.__version__} has no model type {facts.model_type!r} "
            "(code from a model directory is never run)"
        )
    return TransformersModel(facts)


@dataclass
class Running:
    """What the attention function finds at its module: not every class passes keywords down."""

    layers: list[AttentionLayer]
    step: ModelStep | None = None


class TransformersModel(Module):
    """A `Model` around transformers' own classes: the body computes hidden states, and the rest
    of the class (scalings and caps included) turns them into logits."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
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
        self._running = Running(self.attention_layers)
        self._body: Any = None
        self._head: Any = None

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._env = env

    def load(self, weights: Weights) -> None:
        """Build the network, give it the checkpoint's tensors, and part body from head."""
        from vivace.models.transformers_body import Passing

        network = self._network()
        tied = {"lm_head.weight"} if self.facts.tied else set()
        tensors = {
            name: weights.take(name, tuple(old.shape)).to(self._env.device, old.dtype)
            for name, old in network.state_dict().items()
            if name not in tied
        }
        network.load_state_dict(tensors, strict=False, assign=True)
        network.tie_weights()
        network.eval().requires_grad_(False)
        for module in network.modules():
            if "layer_idx" in vars(module):
                module.vivace_running = self._running
        self._body = network.base_model
        setattr(network, network.base_model_prefix, Passing())
        self._head = network

    def _network(self) -> Any:
        import transformers
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, paged_attention)
        keys = {k: v for k, v in self.facts.config.items() if k not in NOT_CONFIG}
        try:
            config = transformers.AutoConfig.for_model(self.facts.model_type, **keys)
            return transformers.AutoModelForCausalLM.from_config(
                config, attn_implementation=ATTENTION, dtype=self._env.dtype
            )
        except Exception as error:  # whatever the class of the model makes of a bad value
            reason = " ".join(str(error).split())[:400]
            raise SourceError(
                f"transformers {transformers.__version__} cannot build {self.facts.architecture} "
                f"from this configuration: {type(error).__name__}: {reason}"
            ) from error

    def forward(self, step: ModelStep) -> Tensor:
        """One row of T tokens; which sequence each belongs to is the attention backend's affair."""
        self._running.step = step
        output = self._body(
            input_ids=step.ids.unsqueeze(0),
            position_ids=step.positions.unsqueeze(0),
            use_cache=False,
        )
        return output.last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits[0].float()


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query[1, Hq, T, D], key and value[1, Hk, T, D]."""
    running: Running = module.vivace_running
    layer, step = running.layers[module.layer_idx], running.step
    assert step is not None
    shape = replace(layer, scale=layer.scale if scaling is None else scaling, soft_cap=softcap)
    q, k, v = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
    attended = step.attention.attend(shape, q, k, v, step)
    return attended.view(1, -1, layer.heads, layer.head_dim), None
