"""Which method holds the weight of each linear layer; decided once, when a model is loaded."""

from __future__ import annotations

from collections.abc import Callable

from vivace.quantization.method import LinearMethod
from vivace.quantization.narrow_blocks import NarrowBlocks
from vivace.quantization.w8 import Int8

SCHEMES = {"w8a8_int8": True, "w8a16": False}
"""--quantization -> activations become int8 too"""
OF_INT8_CHECKPOINTS = "w8a8_int8"
HEAD = "lm_head"


def scheme_of(asked: str | None, int8_checkpoint: bool) -> str | None:
    """One of SCHEMES, or None: weights stay floats, or blocks. Without a wish, what the
    checkpoint was made for."""
    if asked is None and int8_checkpoint:
        return OF_INT8_CHECKPOINTS
    return asked if asked in SCHEMES else None


def linear_methods(
    scheme: str | None,
    plain: Callable[[str], LinearMethod],
    *,
    int8_checkpoint: bool,
    blocks: bool,
    narrow: bool = False,
) -> Callable[[str], LinearMethod]:
    """Full layer name -> a fresh method. `plain` makes the unquantized one; `blocks`: the device
    reads int8 rows as they are; `narrow`: GGUF's blocks are multiplied with activations in int8.
    The head is never quantized here, nor what it reads: its error decides tokens."""
    if scheme is None:
        return lambda name: NarrowBlocks(plain(name)) if narrow and name != HEAD else plain(name)

    def method(name: str) -> LinearMethod:
        online = not int8_checkpoint and name != HEAD
        return Int8(plain(name), narrow=SCHEMES[scheme], online=online, decode=not blocks)

    return method
