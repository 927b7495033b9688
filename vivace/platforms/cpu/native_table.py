"""The op table of the native kernels."""

from __future__ import annotations

import dataclasses

from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.native_attention import rotary_attend, rotary_attend_latent
from vivace.platforms.cpu.native_heads import NativeHeads
from vivace.platforms.cpu.native_linear import NativeLinears, NativeMLP
from vivace.platforms.cpu.native_moe import NativeMoe
from vivace.platforms.cpu.native_ops import NativeOps
from vivace.platforms.cpu.native_segments import NativeSegments
from vivace.platforms.ops.table import Ops, reference_ops


def native_ops(kernels: Kernels) -> Ops:
    """Every op of a decode step is a kernel, so that the step can be captured."""
    linears, rows = NativeLinears(kernels), NativeOps(kernels)
    experts = NativeMoe(kernels, linears)
    heads, segments = NativeHeads(kernels, experts), NativeSegments(kernels, linears)
    ops = dataclasses.replace(
        reference_ops(),
        embedding=linears.embedding,
        pack_embedding=linears.pack_embedding,
        pack_linear=linears.pack,
        linear=linears.linear,
        update_weight=experts.update,
        quantize_static=rows.quantize_static,
        quantize_experts=experts.quantize,
        add_bias=rows.add_bias,
        rms_norm=rows.rms_norm,
        add_rms_norm=rows.add_rms_norm,
        rotary=rows.rotary,
        rotary_attend=rotary_attend,
        rotary_attend_latent=rotary_attend_latent,
        gated_rms_norm=rows.gated_rms_norm,
        sigmoid_mul=rows.sigmoid_mul,
        silu_mul=rows.silu_mul,
        gelu_mul=rows.gelu_mul,
        swigluoai_mul=rows.swigluoai_mul,
        moe_gate=experts.gate,
        moe_place=experts.place,
        select_grouped=experts.select,
        moe_routes=experts.routes,
        moe_permute=experts.permute,
        moe_combine=experts.combine,
        add_gated=experts.add_gated,
        pack_grouped=experts.pack,
        grouped_linear=experts.linear,
        pack_segments=segments.pack,
        segmented_linear=segments.linear,
        add_segments=segments.add,
        pack_heads=heads.pack,
        heads_linear=heads.linear,
        scale=rows.scale,
        scale_positions=rows.scale_positions,
        soft_cap=rows.soft_cap,
    )
    return dataclasses.replace(ops, gated_mlp=NativeMLP(kernels, linears, ops))
