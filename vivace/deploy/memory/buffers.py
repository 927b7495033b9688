"""Communication windows of expert parallelism on Ascend, in bytes.

Source: sgl-kernel-npu, moe_distribute_dispatch_v2_tiling.cpp (CheckWinSize),
cam_moe_dispatch_normal_tiling.cc, FUSED_DEEP_MOE.md.
"""

from __future__ import annotations

import msgspec

from vivace.models.architecture import Architecture

MIB = 1 << 20
TOKEN_HEADER = 44
"""bytes that travel with a token"""
NORMAL_RESERVE = 208 * MIB
MAX_DISPATCH = 1024
"""of SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK (parameter guide)"""
MAX_LOW_LATENCY = 512
"""tokens of a rank: BS_UPPER_BOUND of the low-latency kernel"""
MAX_FUSED = 256
"""tokens of a rank in the fused kernel"""
HCCL_DEFAULT = 200
"""MB, where HCCL_BUFFSIZE is not set"""
STEP = 20
"""MB that a suggested size is rounded up to"""


def align(size: int) -> int:
    return -(-size // 512) * 512


def low_latency(model: Architecture, tokens: int) -> int:
    """`tokens`: the maximum that a rank sends at a time."""
    experts = model.experts
    if experts is None:
        return 0
    sent, back = align(2 * model.hidden + TOKEN_HEADER), align(2 * model.hidden)
    return 2 * tokens * (sent * experts.count + back * experts.chosen)


def normal(model: Architecture, tokens: int, rounds: int = 1) -> int:
    """`tokens`: of a rank in one round."""
    experts = model.experts
    if experts is None:
        return 0
    sent, back = align(2 * model.hidden + TOKEN_HEADER), align(2 * model.hidden)
    return 2 * (tokens * experts.chosen * (back * (2 if rounds > 1 else 1) + sent) + NORMAL_RESERVE)


def fused_size(model: Architecture, tokens: int) -> int:
    return 0 if model.experts is None else tokens * model.experts.count * model.hidden * 4


class Rounds(msgspec.Struct, frozen=True):
    """A long prompt is dispatched in `count` rounds of `tokens` per rank."""

    count: int
    tokens: int


def megabytes(size: int) -> int:
    return -(-size // MIB)


def suggest_size(size: int) -> int:
    """HCCL_BUFFSIZE for a window of `size` bytes, in MB."""
    return -(-megabytes(size) // STEP) * STEP
