"""The op vocabulary: one table of callables, chosen once at start-up by the platform.

Models and layers call `ops.rms_norm(...)`; nobody asks which device runs. A platform starts from
`reference_ops()` and replaces the entries it does better (`dataclasses.replace`). Shapes: T tokens,
H heads, D head_dim, V vocabulary. `out=` is an optional pre-allocated result buffer, so that a step
writes into fixed memory and can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from vivace.platforms.attention import AttendingStep, AttentionLayer, LatentLayer
from vivace.platforms.ops import attention, cache, elementwise, heads, linear, moe, segments
from vivace.platforms.ops.elementwise import SwigluOai
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.moe import ExpertSlots, Gate, Routes
from vivace.platforms.ops.segments import Segments
from vivace.platforms.ops.stored import Packable, StoredBlocks

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""of a gated MLP"""
Activation = str | SwigluOai
"""of experts: one of ACTIVATIONS, or one with numbers of its own"""
PackedWeight = Any
"""What `pack_linear` made of a weight; opaque to everyone but `linear` of the same table."""


class RmsNormOp(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        *,
        offset: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor: ...


class AddRmsNormOp(Protocol):
    def __call__(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]: ...


class RotaryOp(Protocol):
    def __call__(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]: ...


class RotaryAttendOp(Protocol):
    def __call__(
        self,
        layer: AttentionLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        step: AttendingStep,
    ) -> Tensor: ...


class RotaryAttendLatentOp(Protocol):
    def __call__(
        self,
        layer: LatentLayer,
        q: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        rope: Tensor,
        cos_sin: Tensor,
        step: AttendingStep,
    ) -> Tensor: ...


class SiluMulOp(Protocol):
    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...


class GeluMulOp(Protocol):
    def __call__(self, x: Tensor, *, tanh: bool, out: Tensor | None = None) -> Tensor: ...


class LinearOp(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class GatedMlpOp(Protocol):
    def __call__(self, x: Tensor, gate_up: Operands, down: Operands, activation: str) -> Tensor: ...


class MoeGateOp(Protocol):
    def __call__(
        self, gate: Gate, logits: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...


class MoePermuteOp(Protocol):
    def __call__(self, x: Tensor, routes: Routes, weights: Tensor | None = None) -> Tensor: ...


class GroupedLinearOp(Protocol):
    def __call__(
        self, x: Tensor, weight: Any, routes: Routes, bias: Tensor | None = None
    ) -> Tensor: ...


class SegmentedLinearOp(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Any,
        routes: Routes | None = None,
        bias: Tensor | None = None,
    ) -> Tensor: ...


class EmbeddingOp(Protocol):
    def __call__(
        self,
        ids: Tensor,
        weight: PackedWeight,
        out: Tensor | None = None,
        *,
        first: int = 0,
        whole: int | None = None,
    ) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Ops:
    """The ops a model may use. Every entry has the signature of its torch reference."""

    embedding: EmbeddingOp
    """(ids[T] int64, packed weight[V, hidden], out=None, *, first=0, whole=None) -> [T, hidden];
    `whole`: the weight has ids first .. first + V - 1 of so many, and the others give zeros"""
    rms_norm: RmsNormOp
    """(x[..., n], weight[n], eps, *, offset=0.0, out=None) -> like x; reduction in float32"""
    add_rms_norm: AddRmsNormOp
    """(x, residual, weight, eps, *, offset=0.0) -> (normed, residual); residual += x in place"""
    rotary: RotaryOp
    """(q[T, Hq, D], k[T, Hk, D], positions[T], cos_sin[max, rot]) -> (q, k), rotated in place"""
    rotary_attend: RotaryAttendOp
    """(layer, q[T, Hq, D], k[T, Hk, D], v, cos_sin[max, rot], step) -> [T, Hq * D]: rotates q and k
    in place, stores k and v, attends; by `step.attention`, the backend of the same platform"""
    rotary_attend_latent: RotaryAttendLatentOp
    """(layer, q[T, H, latent_dim], q_rope[T, H, rope_dim], latent[T, latent_dim],
    rope[T, rope_dim], cos_sin[max, rope_dim], step) -> [T, H, latent_dim] float32, weighted
    latents: rotates q_rope and rope in place, stores latent and rope, attends; any of them may be
    a part of a wider tensor"""
    gated_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    """(x[T, H, n] float32, weight[n], gate[T, groups, H / groups * n], eps) -> [T, H * n]: the norm
    of x times silu(gate); the gate may be a part of a wider tensor"""
    sigmoid_mul: Callable[[Tensor, Tensor], Tensor]
    """(x[T, H * n], gate[T, H, n]) -> x, in place: times sigmoid(gate), which may be a part of a
    wider tensor"""
    silu_mul: SiluMulOp
    """(x[T, 2n], out=None) -> [T, n]: silu(x[:, :n]) * x[:, n:]"""
    gelu_mul: GeluMulOp
    """(x[T, 2n], *, tanh, out=None) -> [T, n]: gelu(x[:, :n]) * x[:, n:]"""
    swigluoai_mul: Callable[[Tensor, SwigluOai], Tensor]
    """(x[T, 2n], its numbers) -> [T, n]"""
    pack_embedding: Callable[[Tensor | StoredBlocks], PackedWeight]
    """(weight[V, hidden]) -> what `embedding` takes; also what `pack_linear` takes, alone"""
    pack_linear: Callable[[Sequence[Packable]], PackedWeight]
    """(weights[some of out, in], one below the other) -> what `linear` takes; called once, when
    the layer is loaded. Blocks and int8 with float activations only where the platform reads
    them."""
    linear: LinearOp
    """(x[T, in], weight, bias=None, out=None) -> [T, out]"""
    update_weight: Callable[[PackedWeight, PackedWeight], None]
    """(packed, another packed of the same layer) -> the first one has the numbers of the second,
    in its own memory. Raises ValueError where the two were not packed alike."""
    quantize_static: Callable[[Tensor, float, float], Tensor]
    """(x[T, n], scale, offset) -> like x: the whole numbers clamp(round(x / scale + offset), -128,
    127); a NaN stays one"""
    quantize_experts: Callable[[Tensor, Tensor, Tensor, Routes], Tensor]
    """(x[T * top, n] sorted by expert, scales[E], offsets[E], routes) -> like x: the same by
    the numbers of the row's expert"""
    add_bias: Callable[[Tensor, Tensor], Tensor]
    """(x[..., n], bias[n]) -> x, in place"""
    gated_mlp: GatedMlpOp | None
    """(x[T, hidden], gate_up, down, activation) -> [T, hidden]: down(act(gate(x)) * up(x)), with
    gate above up in one weight. None: the device has nothing better than `gated_mlp` below"""
    moe_gate: MoeGateOp
    """(gate, logits[T, E], bias=None) -> (weights[T, top], experts[T, top] int64)"""
    moe_place: Callable[[Tensor, Tensor | None, ExpertSlots], Tensor]
    """(experts[T, top], positions[T] or None, slots) -> [T, top]: slots, this rank's from 0"""
    moe_routes: Callable[[Tensor, int], Routes]
    """(experts[T, top], E) -> where pairs of token and expert go, sorted by expert; those of other
    ranks go nowhere"""
    moe_permute: MoePermuteOp
    """(x[T, n], routes, weights[T, top]=None) -> [T * top, n], sorted, times the weights"""
    moe_combine: Callable[[Tensor, Tensor | None, Routes], Tensor]
    """(x[T * top, n], weights[T, top] or None for ones, routes) -> [T, n]"""
    add_gated: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """(y[T, n], x[T, n], gate[T, 1]) -> y, in place: plus sigmoid(gate) * x; without a gate, x"""
    pack_grouped: Callable[[Sequence[Sequence[Packable]]], Any]
    """(what `pack_linear` takes, for each expert) -> what `grouped_linear` takes"""
    select_grouped: Callable[[Any, Sequence[int]], Any]
    """(what `pack_grouped` made, experts) -> those of it, in its memory, for `update_weight`"""
    grouped_linear: GroupedLinearOp
    """(x[T * top, in] sorted by expert, weight, routes, bias[E, out]=None) -> [T * top, out]"""
    pack_segments: Callable[[Sequence[Packable], Segments], Any]
    """(weight[out, in] of each expert or of the only one, segments) -> what `segmented_linear`
    takes. Raises ValueError where segments would part blocks."""
    segmented_linear: SegmentedLinearOp
    """(x[T, in], weight, None, bias[out]=None) -> [T, sums * out], or as `grouped_linear`
    (x[T * top, in], weight, routes, bias[E, out]=None): the sums of this rank's subtrees"""
    add_segments: Callable[[Tensor, Tensor], Tensor]
    """(x[T, n * sums], merges[sums] int64) -> [T, n]: the sums of all ranks, added by the tree"""
    pack_heads: Callable[[Sequence[Packable]], Any]
    """(weight[out, in] of each head) -> what `heads_linear` takes. Raises ValueError where heads
    differ in shape or format."""
    heads_linear: Callable[[Tensor, Any], Tensor]
    """(x[T, H, in], weight) -> [T, H, out], each head by its own weight; x may have gaps"""
    store_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    """(k[T, Hk, D], v, k_cache[pages, page_size, Hk, D], v_cache, slots[T]) -> None"""
    scale: Callable[[Tensor, float], Tensor]
    """(x, factor) -> x, in place"""
    scale_positions: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(x[T, H, D], positions[T], factors[max]) -> x, in place: each token times its position's"""
    soft_cap: Callable[[Tensor, float], Tensor]
    """(x, cap) -> x, in place: cap * tanh(x / cap)"""


def reference_ops() -> Ops:
    """Every op by its torch reference: correct on any device torch knows."""
    return Ops(
        embedding=elementwise.embedding,
        pack_embedding=elementwise.pack_embedding,
        rms_norm=elementwise.rms_norm,
        add_rms_norm=elementwise.add_rms_norm,
        rotary=elementwise.rotary,
        rotary_attend=attention.RotaryAttend(elementwise.rotary),
        rotary_attend_latent=attention.RotaryAttendLatent(elementwise.rotary),
        gated_rms_norm=elementwise.gated_rms_norm,
        sigmoid_mul=elementwise.sigmoid_mul,
        silu_mul=elementwise.silu_mul,
        gelu_mul=elementwise.gelu_mul,
        swigluoai_mul=elementwise.swigluoai_mul,
        pack_linear=linear.pack_linear,
        linear=linear.linear,
        update_weight=linear.update_weight,
        quantize_static=linear.quantize_static,
        quantize_experts=moe.quantize_experts,
        add_bias=elementwise.add_bias,
        gated_mlp=None,
        moe_gate=moe.moe_gate,
        moe_place=moe.moe_place,
        moe_routes=moe.moe_routes,
        moe_permute=moe.moe_permute,
        moe_combine=moe.moe_combine,
        add_gated=moe.add_gated,
        pack_grouped=moe.pack_grouped,
        select_grouped=moe.select_grouped,
        grouped_linear=moe.grouped_linear,
        pack_segments=segments.pack_segments,
        segmented_linear=segments.segmented_linear,
        add_segments=segments.add_segments,
        pack_heads=heads.pack_heads,
        heads_linear=heads.HeadsLinear(linear.linear),
        store_kv=cache.store_kv,
        scale=elementwise.scale,
        scale_positions=elementwise.scale_positions,
        soft_cap=elementwise.soft_cap,
    )


def gated_mlp(ops: Ops) -> GatedMlpOp:
    """down(act(gate(x)) * up(x)) by `ops`: the slow twin of a fused one."""
    activations = {name: gated_activation(ops, name) for name in ACTIVATIONS}

    def run(x: Tensor, gate_up: Operands, down: Operands, activation: str) -> Tensor:
        inner = activations[activation](ops.linear(x, gate_up.weight, gate_up.bias))
        return ops.linear(inner, down.weight, down.bias)

    return run


def gated_activation(ops: Ops, activation: Activation) -> Callable[[Tensor], Tensor]:
    """x[T, 2n] -> [T, n]: act(x[:, :n]) * x[:, n:]"""
    if isinstance(activation, SwigluOai):
        return lambda x: ops.swigluoai_mul(x, activation)
    activations: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": ops.silu_mul,
        "gelu": lambda x: ops.gelu_mul(x, tanh=False),
        "gelu_tanh": lambda x: ops.gelu_mul(x, tanh=True),
    }
    return activations[activation]
