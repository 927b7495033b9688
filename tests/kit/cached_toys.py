"""A small random decoder whose layers keep different things: keys and values, latents, states."""

from __future__ import annotations

from typing import Any

import torch

from vivace.platforms.attention import (
    AttentionLayer,
    LatentLayer,
    RecurrentInputs,
    RecurrentLayer,
    RecurrentWeights,
)

HIDDEN, HEADS, SIZE, ROPE, KERNEL = 24, 2, 16, 8, 3
VOCABULARY, CONTEXT = 300, 400


class CachedToy:
    """`kinds`: of its layers, "attention", "window", "latent" or "recurrent"; `poison`: a token
    whose hidden state is NaN."""

    def __init__(self, ops: Any, kinds: tuple[str, ...], poison: int | None = None) -> None:
        random = torch.Generator().manual_seed(3)

        def weight(rows: int, columns: int, size: float = 1.3) -> torch.Tensor:
            return torch.randn(rows, columns, generator=random) * (size / columns**0.5)

        self.ops, self.kinds = ops, kinds
        self.attention_layers = [make_layer(kind, index) for index, kind in enumerate(kinds)]
        embedding = weight(VOCABULARY, HIDDEN, 20.0)
        if poison is not None:
            embedding[poison] = torch.nan
        self.embedding = ops.pack_embedding(embedding)
        self.head = ops.pack_linear([weight(VOCABULARY, HIDDEN, 4.0)])
        self.ones = torch.ones(HIDDEN)
        self.weights = [
            (
                ops.pack_linear([weight(sum(SIZES[kind]), HIDDEN)]),
                ops.pack_linear([weight(HIDDEN, HEADS * SIZE)]),
            )
            for kind in kinds
        ]
        self.kernels = [weight(KERNEL, 3 * HEADS * SIZE, 8.0) for _ in kinds]
        angles = torch.outer(torch.arange(CONTEXT + 8.0), 50.0 ** -torch.arange(0, 1, 2 / ROPE))
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)

    def forward(self, step: Any) -> torch.Tensor:
        residual = self.ops.embedding(step.input_ids, self.embedding)
        normed = self.ops.rms_norm(residual, self.ones, 1e-5)
        for index, (taken, given) in enumerate(self.weights):
            parts = self.ops.linear(normed, taken).split(SIZES[self.kinds[index]], -1)
            mixed = getattr(self, self.kinds[index])(index, parts, step)
            mixed = self.ops.linear(mixed.contiguous(), given)
            normed, residual = self.ops.add_rms_norm(mixed, residual, self.ones, 1e-5)
        return normed

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.ops.linear(hidden, self.head).float()

    def attention(self, index: int, parts: Any, step: Any) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, SIZE)) for part in parts)
        layer = self.attention_layers[index]
        return self.ops.rotary_attend(layer, q, k, v, self.cos_sin, step)

    window = attention

    def latent(self, index: int, parts: Any, step: Any) -> torch.Tensor:
        q, q_rope, latent, rope = parts
        q, q_rope = q.unflatten(-1, (HEADS, SIZE)), q_rope.unflatten(-1, (HEADS, ROPE))
        layer = self.attention_layers[index]
        mixed = self.ops.rotary_attend_latent(layer, q, q_rope, latent, rope, self.cos_sin, step)
        return mixed.view(len(mixed), -1)

    def recurrent(self, index: int, parts: Any, step: Any) -> torch.Tensor:
        x, a, b = parts
        q, k, v = x.unflatten(-1, (3, HEADS, SIZE)).unbind(1)
        inputs = RecurrentInputs(q=q, k=k, v=v, a=a.unsqueeze(-1), b=b.unsqueeze(-1))
        decay, bias = torch.full((HEADS,), 0.02), torch.zeros(HEADS)
        weights = RecurrentWeights(conv=self.kernels[index], decay=decay, dt_bias=bias)
        said = step.attention.recur(self.attention_layers[index], inputs, weights, step)
        return self.ops.scale(said.view(len(said), -1), 4.0)


SIZES = {
    "attention": [HEADS * SIZE] * 3,
    "window": [HEADS * SIZE] * 3,
    "latent": [HEADS * SIZE, HEADS * ROPE, SIZE, ROPE],
    "recurrent": [3 * HEADS * SIZE, HEADS, HEADS],
}
"""kind -> what a layer makes of a hidden state"""


def make_layer(kind: str, index: int) -> AttentionLayer | LatentLayer | RecurrentLayer:
    if kind == "latent":
        return LatentLayer(index=index, heads=HEADS, latent_dim=SIZE, rope_dim=ROPE, scale=0.3)
    if kind == "recurrent":
        return RecurrentLayer(
            index=index,
            key_heads=HEADS,
            value_heads=HEADS,
            key_dim=SIZE,
            value_dim=SIZE,
            kernel=KERNEL,
        )
    return AttentionLayer(
        index=index,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=SIZE,
        scale=SIZE**-0.5,
        window=24 if kind == "window" else None,
    )
