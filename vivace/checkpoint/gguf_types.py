"""Types of tensors in a GGUF file: ggml's numbers, and the blocks they are stored in.

The package gguf has the same table, and brings numpy and much else with it: 14 MiB in each process
that only reads a header.
"""

from __future__ import annotations

from enum import IntEnum


class GGMLQuantizationType(IntEnum):
    """`enum ggml_type` of ggml.h; equal to gguf's enumeration of this name."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41


_T = GGMLQuantizationType
_SIZES = {
    (1, 1): (_T.I8,),
    (1, 2): (_T.F16, _T.BF16, _T.I16),
    (1, 4): (_T.F32, _T.I32),
    (1, 8): (_T.F64, _T.I64),
    (32, 17): (_T.MXFP4,),
    (32, 18): (_T.Q4_0, _T.IQ4_NL),
    (32, 20): (_T.Q4_1,),
    (32, 22): (_T.Q5_0,),
    (32, 24): (_T.Q5_1,),
    (32, 34): (_T.Q8_0,),
    (32, 40): (_T.Q8_1,),
    (64, 36): (_T.NVFP4,),
    (128, 18): (_T.Q1_0,),
    (256, 50): (_T.IQ1_S,),
    (256, 54): (_T.TQ1_0,),
    (256, 56): (_T.IQ1_M,),
    (256, 66): (_T.IQ2_XXS, _T.TQ2_0),
    (256, 74): (_T.IQ2_XS,),
    (256, 82): (_T.IQ2_S,),
    (256, 84): (_T.Q2_K,),
    (256, 98): (_T.IQ3_XXS,),
    (256, 110): (_T.Q3_K, _T.IQ3_S),
    (256, 136): (_T.IQ4_XS,),
    (256, 144): (_T.Q4_K,),
    (256, 176): (_T.Q5_K,),
    (256, 210): (_T.Q6_K,),
    (256, 292): (_T.Q8_K,),
}
GGML_QUANT_SIZES = {kind: size for size, kinds in _SIZES.items() for kind in kinds}
"""(numbers, bytes) of a block"""
