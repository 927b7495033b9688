"""The references for latent attention and recurrent layers: one token at a time, float32.

Every platform runs these kinds by them until it has something faster.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from vivace.platforms.attention import (
    LatentLayer,
    RecurrentInputs,
    RecurrentLayer,
    RecurrentWeights,
    Step,
)
from vivace.platforms.ops.cache import dequantize_kv, quantize_kv
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.trees import locate_context

SHORTEST = 1e-6
"""is added to squared lengths of queries and keys of recurrent layers"""


class SequentialLayers:
    """`attend_latent` and `recur` of an AttentionBackend."""

    def __init__(self, memory: PagedCache) -> None:
        self._memory = memory

    def attend_latent(
        self,
        layer: LatentLayer,
        q: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        rope: Tensor,
        step: Step,
    ) -> Tensor:
        where = step.groups[self._memory.groups[layer.index]]
        caches, sizes = self._memory.parts(layer.index), (layer.latent_dim, layer.rope_dim)
        for cache, new in zip(caches, (latent, rope), strict=True):
            cache.flatten(0, 1).index_copy_(0, where.slot_mapping, quantize_kv(new, cache.dtype))
        result = torch.empty(*q.shape, device=q.device)
        host = step.host
        for span, length in enumerate(host.context_lens.tolist()):
            first, end = int(host.starts[span]), int(host.starts[span + 1])
            context = locate_context(
                where, span, length, step.context_lens[span], self._memory.page_size
            )
            latents, ropes = (
                dequantize_kv(cache.flatten(0, 1)[context], size)
                for cache, size in zip(caches, sizes, strict=True)
            )
            for token in range(first, end):
                bound = length - (end - token) + 1  # the host's
                hidden = _hide(layer, step.context_lens[span] - (end - token), bound)
                scores = q[token].float() @ latents[:bound].T
                scores = (scores + q_rope[token].float() @ ropes[:bound].T) * layer.scale
                weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
                result[token] = weights @ latents[:bound]
        return result

    def recur(
        self,
        layer: RecurrentLayer,
        inputs: RecurrentInputs,
        weights: RecurrentWeights,
        step: Step,
    ) -> Tensor:
        states, convs = self._memory.parts(layer.index)
        assert step.states is not None
        host, slots = step.host, step.states
        x = torch.cat([part.flatten(1).float() for part in (inputs.q, inputs.k, inputs.v)], 1)
        kept_share = (
            -weights.decay * softplus(inputs.a.flatten(1).float() + weights.dt_bias)
        ).exp()
        new_share = inputs.b.flatten(1).float().sigmoid()
        result = torch.empty(len(x), layer.value_heads, layer.value_dim, device=x.device)
        for span in range(len(host.starts) - 1):
            first, end = int(host.starts[span]), int(host.starts[span + 1])
            kept = end - 1 - (0 if slots.drafts is None else int(slots.drafts[span]))
            read = slots.read[span : span + 1]
            state, conv = (cache.index_select(0, read)[0] for cache in (states, convs))
            for token in range(first, end):
                conv = torch.cat((conv, x[token : token + 1]))
                mixed = silu((conv * weights.conv).sum(0))
                state, result[token] = _advance(
                    layer, state, mixed, kept_share[token], new_share[token]
                )
                conv = conv[1:]
                if token >= kept:
                    slot = slots.write[span, token - kept : token - kept + 1]
                    states.index_copy_(0, slot, state.unsqueeze(0))
                    convs.index_copy_(0, slot, conv.unsqueeze(0))
        return result


def _hide(layer: LatentLayer, position: Tensor, bound: int) -> Tensor:
    """[bound] bool: what a query at `position` does not see"""
    places = torch.arange(bound, device=position.device)
    hidden = places > position
    return hidden if layer.window is None else hidden | (places <= position - layer.window)


def _advance(
    layer: RecurrentLayer, state: Tensor, mixed: Tensor, kept_share: Tensor, new_share: Tensor
) -> tuple[Tensor, Tensor]:
    """(the state behind a token, its output [H, value_dim]), from mixed[channels]; shares[H]"""
    keys = layer.key_heads * layer.key_dim
    q, k, v = mixed.split([keys, keys, layer.value_heads * layer.value_dim])
    q, k = (_spread(layer, part) for part in (q, k))
    state = state * kept_share[:, None, None]
    known = (k.unsqueeze(2) * state).sum(1)
    change = (v.view_as(known) - known) * new_share.unsqueeze(1)
    state = state + k.unsqueeze(2) * change.unsqueeze(1)
    return state, (q.unsqueeze(2) * state).sum(1) * layer.key_dim**-0.5


def _spread(layer: RecurrentLayer, part: Tensor) -> Tensor:
    """[key_heads * key_dim] -> [value_heads, key_dim], each of length 1"""
    heads = part.view(layer.key_heads, layer.key_dim)
    heads = heads * (heads.square().sum(1, keepdim=True) + SHORTEST).rsqrt()
    return heads.repeat_interleave(layer.group, 0)
