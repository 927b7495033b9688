"""What the worker runs, and what a model file of every architecture needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor

from vivace.checkpoint.fused_experts import FusedTensors
from vivace.checkpoint.weights import Weights
from vivace.layers.experts import (
    USUAL_NAMES,
    ExpertNames,
    MixtureOfExperts,
    RoutedExperts,
    TopkRouter,
    replicated,
)
from vivace.layers.linear import GatedMLP
from vivace.layers.module import Bindings
from vivace.layers.rotary import RotaryTable
from vivace.models.expert_facts import ExpertFacts
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.models.rope import Rope
from vivace.platforms.attention import AttendingStep, AttentionLayer
from vivace.platforms.cache import CacheLayer
from vivace.platforms.ops.elementwise import SwigluOai
from vivace.platforms.ops.moe import Gate


class ModelStep(AttendingStep, Protocol):
    """T tokens of some sequences, side by side (`worker.step_input.StepInput` is one)."""

    @property
    def input_ids(self) -> Tensor:
        """[T] int64 token ids"""
        ...


class CausalLM(Protocol):
    """What the worker runs."""

    @property
    def attention_layers(self) -> Sequence[CacheLayer]:
        """Of every kind: whatever keeps something of a sequence; known once it is bound."""
        ...

    def bind(self, name: str, env: Bindings) -> None: ...

    def load(self, weights: Weights) -> None: ...

    def update(self, weights: Weights) -> None:
        """Other numbers in the memory of those that were loaded."""
        ...

    def claims(self) -> Iterable[str]:
        """Names of tensors that the architecture has a place for, on whatever rank."""
        ...

    def forward(self, step: ModelStep) -> Tensor:
        """ids and positions of T tokens -> hidden[T, hidden], after the final norm"""
        ...

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, vocabulary] float32"""
        ...


def rotary_table(rope: Rope, positions: int) -> RotaryTable:
    """The table a configuration asks for; `positions` is how many are served."""
    return RotaryTable(rope.rotated, rope.theta, positions, rope.kind, rope.scaling)


def attention_shape(facts: ModelFacts, decoder: DecoderFacts, index: int) -> AttentionLayer:
    return AttentionLayer(
        index=index,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        scale=decoder.query_scale,
        window=facts.layer_windows[index],
        chunk=decoder.llama4.chunks[index] if decoder.llama4 is not None else None,
        soft_cap=decoder.score_cap,
    )


SHARED = ExpertNames(shared="shared_experts")
EXPERT_NAMES = {
    "MixtralForCausalLM": ExpertNames(mixture="block_sparse_moe", gate="w1", up="w3", down="w2"),
    "DeepseekV2ForCausalLM": SHARED,
    "DeepseekV3ForCausalLM": SHARED,
    "Glm4MoeForCausalLM": SHARED,
    "Llama4ForCausalLM": ExpertNames(
        mixture="feed_forward", router="router", fused=FusedTensors(interleaved=False)
    ),
    "GptOssForCausalLM": ExpertNames(router="router", fused=FusedTensors(interleaved=True)),
}
"""of families whose checkpoints have others than most"""


def feed_forward(
    facts: ModelFacts, decoder: DecoderFacts, index: int
) -> GatedMLP | MixtureOfExperts:
    """What follows the attention of a layer."""
    experts = decoder.experts
    if experts is not None and experts.layers[index]:
        return mixture(facts, decoder, experts)
    inner = facts.intermediate_size
    return GatedMLP(facts.hidden_size, inner, decoder.activation, bias=decoder.mlp_bias)


def mixture(facts: ModelFacts, decoder: DecoderFacts, experts: ExpertFacts) -> MixtureOfExperts:
    hidden, shared = facts.hidden_size, experts.shared_width
    names = EXPERT_NAMES.get(facts.architecture, USUAL_NAMES)
    choice = experts.choice
    gate = Gate(
        top=choice.top,
        scoring=choice.scoring,
        renormalize=choice.renormalize,
        scale=choice.scale,
        groups=choice.groups,
        top_groups=choice.top_groups,
    )
    biased = experts.clamp is not None
    return MixtureOfExperts(
        TopkRouter(
            hidden,
            experts.count,
            gate,
            name=names.router,
            bias=biased,
            corrected=choice.corrected,
        ),
        RoutedExperts(
            hidden,
            experts.width,
            experts.count,
            SwigluOai(experts.clamp.alpha, experts.clamp.limit)
            if experts.clamp
            else decoder.activation,
            names,
            bias=biased,
            weigh_inputs=choice.weigh_inputs,
        ),
        GatedMLP(hidden, shared, decoder.activation, bias=decoder.mlp_bias, group="shared_experts")
        if shared
        else None,
        replicated(hidden, "shared_expert_gate", 1) if experts.shared_gate else None,
    )
