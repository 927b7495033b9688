"""Heads that draft from what a model has computed already (EAGLE; Li et al. 2024, 2025): one layer
over the model's hidden state of a token and the embedding of the next one.

A head is given a state of each token: at first made of the model's features, and in further passes
what the head itself left. At position i the input is the token i + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vivace.config.config import HeadShape
from vivace.layers.attention import Attention
from vivace.layers.linear import Embedding, GatedMLP, LogitsHead, Part, RMSNorm
from vivace.layers.module import Bindings, Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, rotary_table
from vivace.models.decoder import DecoderForCausalLM
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.quantization.packed import WeightPacker
from vivace.worker.drafters.joined_linear import JoinedLinear


class ComputeDraft(Protocol):
    """The layers of a head. [T, hidden] both -> (what logits are made of, the next states); `state`
    may change."""

    def __call__(
        self, embedded: Tensor, state: Tensor, step: ModelStep
    ) -> tuple[Tensor, Tensor]: ...


class FuseFeatures(Protocol):
    """What the model had of T tokens, [T, its hidden] each -> states [T, hidden]"""

    def __call__(self, features: Sequence[Tensor], step: ModelStep) -> Tensor: ...


class HeadWords(Protocol):
    """What a head says. `ids` [draft vocabulary] int64: the model's ids of the head's; None: they
    are the same."""

    @property
    def ids(self) -> Tensor | None: ...

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, draft vocabulary] float32"""
        ...


@dataclass(frozen=True)
class ServedWords:
    """Those of the model, by its head."""

    lm_head: Callable[[Tensor], Tensor]
    ids: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)


class ChosenWords:
    """Only these `ids` of the model's. `matrix`[vocabulary, hidden]: its head's"""

    def __init__(self, ids: Sequence[int], matrix: Tensor, packer: WeightPacker) -> None:
        chosen = torch.tensor(ids)
        self._linear = packer.ops.linear
        self._matrix = packer.pack([matrix.index_select(0, chosen)])
        self.ids = chosen.to(packer.device)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._linear(hidden, self._matrix).float()


class OwnWords(Module):
    """By a matrix of the head's own, with so many rows, which are these `ids` of the model."""

    ids: Tensor | None = None

    def __init__(self, vocabulary: int, hidden: int, ids: Sequence[int]) -> None:
        self._shape = Embedding(vocabulary, hidden)  # never loaded: the matrix is of its shape
        self._listed = ids
        self.lm_head = LogitsHead(self._shape, tied=False)

    def bind(self, name: str, env: Bindings) -> None:
        self._shape.bind("embed_tokens", env)
        super().bind(name, env)
        self.ids = torch.tensor(self._listed, device=env.device) if self._listed else None

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)


def take_last(features: Sequence[Tensor], step: ModelStep) -> Tensor:
    """The states are the model's hidden ones."""
    (state,) = features
    return state


class DraftHead(Module):
    """A head around the layers of its `body`, which are named as if they were its own. `taps` are
    the states for the next pass, [T, hidden], once `forward` is over."""

    taps: Sequence[Tensor] = ()
    _fixed: Tensor
    _given: Tensor

    def __init__(
        self,
        served: DecoderForCausalLM,
        hidden: int,
        body: Module,
        compute: ComputeDraft,
        *,
        fuse: FuseFeatures = take_last,
        words: OwnWords | None = None,
        embedding: Embedding | None = None,
    ) -> None:
        """`words`, `embedding`: the head's own; None: the model's"""
        self.hidden = hidden
        self._own_embedding = embedding
        self._embed: Embedding = embedding or served.model.embed_tokens
        self._body = body
        self._compute = compute
        self.fuse = fuse
        self._own_words = words
        self.words: HeadWords = words or ServedWords(served.lm_head)

    def children(self) -> Iterator[tuple[str, Module]]:
        yield "", self._body
        if self._own_words is not None:
            yield "", self._own_words
        if self._own_embedding is not None:
            yield "embed_tokens", self._own_embedding

    def bind(self, name: str, env: Bindings) -> None:
        self.name = name
        for own, child in self.children():
            child.bind(own or name, env)
        self._given = self._fixed = torch.zeros(0, self.hidden, dtype=env.dtype, device=env.device)

    def reserve(self, tokens: int) -> None:
        """Passes of up to so many tokens find their states at an address that stays."""
        self._given = self._fixed = self._fixed.new_zeros(tokens, self.hidden)

    def give(self, states: Tensor) -> None:
        """[T, hidden] of each token of the next pass"""
        count = len(states)
        self._given = self._fixed if count <= len(self._fixed) else states.clone()
        self._given[:count].copy_(states)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, draft vocabulary] float32"""
        return self.words(hidden)

    def forward(self, step: ModelStep) -> Tensor:
        """-> hidden[T, hidden], of which logits are made"""
        embedded = self._embed(step.input_ids)
        hidden, state = self._compute(embedded, self._given[: len(embedded)], step)
        self.taps = (state,)
        return hidden


class HeadLayer(Module):
    """What both generations of EAGLE have: a Llama's layer; its norms in front differ."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, rotary: RotaryTable) -> None:
        hidden = facts.hidden_size
        self.self_attn = Attention(
            attention_shape(facts, decoder, 0),
            hidden,
            rotary,
            qkv_bias=decoder.attention_bias,
            output_bias=decoder.attention_bias,
        )
        self.post_attention_layernorm = RMSNorm(hidden, decoder.norm_eps)
        self.mlp = GatedMLP(
            hidden, facts.intermediate_size, decoder.activation, bias=decoder.mlp_bias
        )

    def complete(self, attended: Tensor, state: Tensor, step: ModelStep) -> tuple[Tensor, Tensor]:
        x, residual = self.post_attention_layernorm.add(attended, state)
        return self.mlp(x, step), residual


class EagleBody(Module):
    """EAGLE 1 and 2: `fc` makes one of embedding and state, and the layer's outcome is what the
    model's own head takes."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        self.tables = [rotary_table(decoder.rope, positions)]
        self.fc = JoinedLinear(facts.hidden_size, 2, [Part("fc", facts.hidden_size)])
        self.layers = [HeadLayer(facts, decoder, self.tables[0])]

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._add = env.ops.add_gated

    def claims(self) -> Iterator[str]:
        yield from super().claims()
        yield from ("embed_tokens.weight", "lm_head.weight")
        yield from ("layers.0.input_layernorm.weight", "norm.weight")  # of Llama's, used by nobody

    def __call__(self, embedded: Tensor, state: Tensor, step: ModelStep) -> tuple[Tensor, Tensor]:
        (layer,) = self.layers
        joined = self.fc((embedded, state), step)
        x, residual = layer.complete(layer.self_attn(joined, step), joined, step)
        hidden = self._add(residual, x, None)
        return hidden, hidden


class Eagle3Layer(HeadLayer):
    """Its attention sees embedding and state side by side; its residual is the state, or with
    `normed` what the norm leaves of that."""

    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, rotary: RotaryTable, *, normed: bool
    ) -> None:
        super().__init__(facts, decoder, rotary)
        hidden, head = facts.hidden_size, facts.head_dim
        self._normed = normed
        self.input_layernorm = RMSNorm(hidden, decoder.norm_eps)
        self.hidden_norm = RMSNorm(hidden, decoder.norm_eps)
        parts = [
            Part("q_proj", facts.heads * head, head),
            Part("k_proj", facts.kv_heads * head, head, repeated=True),
            Part("v_proj", facts.kv_heads * head, head, repeated=True),
        ]
        attention: Any = self.self_attn
        attention.qkv_proj = self._qkv = JoinedLinear(hidden, 2, parts, group="attention")

    def __call__(self, embedded: Tensor, state: Tensor, step: ModelStep) -> tuple[Tensor, Tensor]:
        attention, normed = self.self_attn, self.hidden_norm(state)
        q, k, v = (
            part.unflatten(-1, (-1, attention.shape.head_dim))
            for part in self._qkv((self.input_layernorm(embedded), normed), step).split(
                attention.sizes, -1
            )
        )
        attended = attention.o_proj(attention.attend(q, k, v, step), step)
        return self.complete(attended, normed if self._normed else state, step)


class Eagle3Body(Module):
    """EAGLE 3: `fc` makes a state of what some of the model's layers were given. `features`: the
    model's hidden size."""

    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        positions: int,
        *,
        features: int,
        shape: HeadShape,
    ) -> None:
        hidden = facts.hidden_size
        self._shape = shape
        self.tables = [rotary_table(decoder.rope, positions)]
        self.fc = JoinedLinear(features, len(shape.taps), [Part("fc", hidden)])
        self.midlayer = Eagle3Layer(
            facts, decoder, self.tables[0], normed=shape.norm_before_residual
        )
        self.norm = RMSNorm(hidden, decoder.norm_eps)

    def children(self) -> Iterator[tuple[str, Module]]:
        """Where there is nothing to fuse files may have `fc` nevertheless."""
        unused = () if self._shape.taps else (self.fc,)
        yield from (child for child in super().children() if child[1] not in unused)

    def claims(self) -> Iterator[str]:
        yield from super().claims()
        yield from ("embed_tokens.weight", "d2t", "t2d", "fc.weight", "fc.bias")

    def fuse(self, features: Sequence[Tensor], step: ModelStep) -> Tensor:
        return self.fc(features, step) if self._shape.taps else take_last(features, step)

    def __call__(self, embedded: Tensor, state: Tensor, step: ModelStep) -> tuple[Tensor, Tensor]:
        x, residual = self.midlayer(embedded, state, step)
        hidden, residual = self.norm.add(x, residual)
        return hidden, hidden if self._shape.norm_output else residual
