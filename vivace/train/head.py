"""An EAGLE3 head (Li et al. 2025) as torch's autograd sees it: tensors under the names of its
file, and the passes of one layer over whole sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Parameters = dict[str, Tensor]
"""float32, by their names in the file"""


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """A Llama's layer over `features` hidden states of the model's; heads of `head_dim`."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    features: int
    norm_eps: float

    def count(self, vocabulary: int) -> int:
        """Numbers of a head that may say so many tokens; norms are next to nothing."""
        width = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        each = self.features * self.hidden + 2 * width + 3 * self.inner + vocabulary
        return each * self.hidden


LAYER = "midlayer"
ATTENTION = f"{LAYER}.self_attn"
NORMS = (
    f"{LAYER}.input_layernorm",
    f"{LAYER}.hidden_norm",
    f"{LAYER}.post_attention_layernorm",
)


def make_parameters(
    sizes: HeadSizes, *, output: Tensor, norm: Tensor, scales: Tensor, seed: int
) -> Parameters:
    """`output`[vocabulary, hidden], `norm`[hidden]: those of the model, of the head's tokens.
    `scales`[features]: how large the model's hidden states are, so that what `fc` makes of them is
    as large as 1. The layer adds little at first."""
    chance = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, size: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=chance) * (size * columns**-0.5)

    hidden, width = sizes.hidden, sizes.heads * sizes.head_dim
    fused = matrix(hidden, sizes.features * hidden, 0.5)
    fused[:, -hidden:] += torch.eye(hidden)  # the last layer's state is what comes nearest
    found = {
        "fc.weight": fused / scales.repeat_interleave(hidden),
        f"{ATTENTION}.q_proj.weight": matrix(width, 2 * hidden),
        f"{ATTENTION}.k_proj.weight": matrix(sizes.kv_heads * sizes.head_dim, 2 * hidden),
        f"{ATTENTION}.v_proj.weight": matrix(sizes.kv_heads * sizes.head_dim, 2 * hidden),
        f"{ATTENTION}.o_proj.weight": matrix(hidden, width, 0.2),
        f"{LAYER}.mlp.gate_proj.weight": matrix(sizes.inner, hidden),
        f"{LAYER}.mlp.up_proj.weight": matrix(sizes.inner, hidden),
        f"{LAYER}.mlp.down_proj.weight": matrix(hidden, sizes.inner, 0.2),
        **{f"{name}.weight": torch.ones(hidden) for name in NORMS},
        "norm.weight": norm.float(),
        "lm_head.weight": output.float(),
    }
    return {name: tensor.clone().requires_grad_() for name, tensor in found.items()}


class HeadPasses:
    """The head's layer over B sequences, pass by pass. `cos_sin`[positions, head_dim]: as
    `RotaryTable` has it. `multiplied`: the type that matrices are multiplied in; everything else,
    the parameters too, is float32."""

    def __init__(
        self,
        sizes: HeadSizes,
        parameters: Parameters,
        cos_sin: Tensor,
        multiplied: torch.dtype = torch.float32,
    ) -> None:
        self._sizes = sizes
        self._multiplied = multiplied
        self._parameters = parameters
        self._cos_sin = cos_sin

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, draft vocabulary]"""
        return self._linear("lm_head", hidden)

    def unroll(self, features: Tensor, embedded: Tensor, steps: int) -> Iterator[Tensor]:
        """`features`[B, L, features * hidden] of tokens 0 to L - 1, `embedded`[B, at least
        L + steps, hidden] of all tokens -> of each pass [B, L, hidden], of which logits are made.

        As in the paper's training-time test pass s at place i is what drafting computes behind s
        drafts: its state is that of the pass before, its input token i + 1 + s, and it sees the
        model's states up to i and those drafts' alone. It says what token i + 2 + s is.
        """
        state, length = self._linear("fc", features), features.shape[1]
        keys, values = list[Tensor](), list[Tensor]()
        for step in range(steps):
            inputs = torch.cat(
                (
                    self._norm(f"{LAYER}.input_layernorm", embedded[:, 1 + step :][:, :length]),
                    self._norm(f"{LAYER}.hidden_norm", state),
                ),
                dim=-1,
            )
            q, k, v = (self._linear(f"{ATTENTION}.{name}_proj", inputs) for name in "qkv")
            keys.append(self._turn(self._split(k), step))
            values.append(self._split(v))
            attended = self._attend(self._turn(self._split(q), step), keys, values)
            residual = state + self._linear(f"{ATTENTION}.o_proj", attended)
            x = self._norm(f"{LAYER}.post_attention_layernorm", residual)
            gate, up = (self._linear(f"{LAYER}.mlp.{name}_proj", x) for name in ("gate", "up"))
            inner = functional.silu(gate) * up
            state = residual + self._linear(f"{LAYER}.mlp.down_proj", inner)
            yield self._norm("norm", state)

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """q[B, heads, L, dim] -> [B, L, heads * dim]. Of the first pass it sees places up to its
        own, of further ones its own place."""
        groups = self._sizes.heads // self._sizes.kv_heads
        (k, *later_keys), (v, *later_values) = (
            [one.repeat_interleave(groups, 1) for one in many] for many in (keys, values)
        )
        if not later_keys:
            found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return found.transpose(1, 2).flatten(2)
        scale, length = self._sizes.head_dim**-0.5, q.shape[2]
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(ahead, -torch.inf)
        own = [(q * each).sum(-1, keepdim=True) for each in later_keys]
        weights = (torch.cat((scores, *own), dim=-1) * scale).softmax(-1)
        found = weights[..., :length] @ v
        for place, each in enumerate(later_values, length):
            found = found + weights[..., place : place + 1] * each
        return found.transpose(1, 2).flatten(2)

    def _turn(self, x: Tensor, step: int) -> Tensor:
        """Rotary embedding of [B, heads, L, dim], which stands at place + step."""
        cos, sin = self._cos_sin[step : step + x.shape[2]].chunk(2, -1)
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._sizes.head_dim)).transpose(1, 2)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight, kind = self._parameters[f"{name}.weight"], self._multiplied
        return functional.linear(x.to(kind), weight.to(kind)).float()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._parameters[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, self._sizes.norm_eps)
