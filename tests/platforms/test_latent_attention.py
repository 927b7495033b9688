"""Latent attention of every backend against plain attention over what it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from test_attention_backends import POOLS, MadeStep, made_step

from vivace.platforms.attention import AttentionLayer, LatentLayer
from vivace.platforms.cache import group_bytes_per_token
from vivace.platforms.cpu.attention import CpuAttention
from vivace.platforms.cpu.deterministic import BatchInvariantAttention, batch_invariant
from vivace.platforms.cpu.ops import cpu_ops
from vivace.platforms.ops.attention import ReferenceAttention
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.ops.table import reference_ops

BACKENDS = {
    "reference": (reference_ops(), ReferenceAttention),
    "torch": (cpu_ops(), CpuAttention),
    "deterministic": (batch_invariant(cpu_ops()), BatchInvariantAttention),
}
SIZES = ((32, 16), (24, 8))


@dataclass(frozen=True)
class PageCopy:
    source: int
    target: int
    group: int = 0


@dataclass(frozen=True)
class AttendedStep:
    """A made-up step with its backend and the positions of its tokens."""

    made: MadeStep
    attention: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    @property
    def positions(self) -> torch.Tensor:
        host = self.made.host
        spans = zip(host.context_lens, host.starts[:-1], host.starts[1:], strict=True)
        return torch.cat([torch.arange(end - (b - a), end) for end, a, b in spans])


def expanded(layer, q, q_rope, keys, values):
    """One query over all it sees: q[H, L], keys[n, L + R], values[n, L] -> [H, L], float64."""
    scores = torch.cat((q, q_rope), -1).double() @ keys.double().T * layer.scale
    return scores.softmax(-1) @ values.double()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("latent_dim,rope_dim", SIZES)
@pytest.mark.parametrize("window", [None, 7])
def test_a_prompt_in_chunks_equals_plain_attention(name, latent_dim, rope_dim, window):
    torch.manual_seed(0)
    ops, backend = BACKENDS[name]
    layer = LatentLayer(
        index=0, heads=3, latent_dim=latent_dim, rope_dim=rope_dim, scale=0.2, window=window
    )
    memory = PagedCache([layer], [POOLS[16]], 16, torch.float32, torch.device("cpu"))
    attention = backend([layer], memory, torch.float32)
    angles = torch.randn(60, rope_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    q, latents = torch.randn(50, 3, latent_dim + rope_dim), torch.randn(50, latent_dim + rope_dim)
    turned = latents[:, latent_dim:].clone().unsqueeze(1)
    turned_q = q[..., latent_dim:].clone()
    reference_ops().rotary(turned_q, turned, torch.arange(50), cos_sin)
    keys = torch.cat((latents[:, :latent_dim], turned[:, 0]), -1)
    for before, end in ((0, 20), (20, 21), (21, 50)):
        step = AttendedStep(made_step([(before, end - before)], 16, scattered=False), attention)
        some = slice(before, end)
        found = ops.rotary_attend_latent(
            layer,
            q[some, :, :latent_dim],
            q[some, :, latent_dim:],
            latents[some, :latent_dim],
            latents[some, latent_dim:],
            cos_sin,
            step,
        )
        for token in range(before, end):
            first = 0 if window is None else max(0, token - window + 1)
            seen = slice(first, token + 1)
            wanted = expanded(
                layer,
                q[token, :, :latent_dim],
                turned_q[token],
                keys[seen],
                latents[seen, :latent_dim],
            )
            torch.testing.assert_close(found[token - before].double(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(latents[:, latent_dim:], turned[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_every_rank_keeps_whole_latents(dtype: torch.dtype) -> None:
    """Ranks divide heads, of which a latent has none: a token takes as much on each, and a page
    copied or forgotten is the same everywhere."""

    def make_layers(ranks: int) -> list[LatentLayer | AttentionLayer]:
        heads = 16 // ranks
        latent = LatentLayer(index=0, heads=heads, latent_dim=512, rope_dim=64, scale=1.0)
        shape = {"heads": heads, "kv_heads": heads, "head_dim": 16}
        return [latent, AttentionLayer(index=1, scale=1.0, window=8, **shape)]

    scales = 8 if dtype == torch.int8 else 0
    for ranks in (1, 2, 16):
        latent, grouped = group_bytes_per_token(make_layers(ranks), (8,), dtype)
        assert latent == 576 * dtype.itemsize + scales
        assert grouped * ranks == group_bytes_per_token(make_layers(1), (8,), dtype)[1]


def test_copied_and_forgotten_latents() -> None:
    layer = LatentLayer(index=0, heads=2, latent_dim=24, rope_dim=8, scale=1.0)
    memory = PagedCache([layer], [5], 4, torch.bfloat16, torch.device("cpu"))
    for part in memory.parts(0):
        part.copy_(torch.arange(part.numel()).view(part.shape) % 97 + 1)
    before = [part.clone() for part in memory.parts(0)]
    memory.copy([PageCopy(1, 3)])
    memory.zero_slots(torch.tensor([5, 17]))
    for part, old in zip(memory.parts(0), before, strict=True):
        assert torch.equal(part[3], old[1])
        assert (part[1, 1] == 0).all() and (part[4, 1] == 0).all()
        assert torch.equal(part[1, 0], old[1, 0]) and torch.equal(part[2], old[2])
