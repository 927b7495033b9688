"""What the kernels are given, checked before its address is all that is left of it.

A kernel believes its words: sizes, strides and addresses. So every tensor is compared with the
sizes beside it, at every call; a captured step pays once, when it is captured. Page tables, slots
and lengths are contents: worker/rows.py makes them right, and `paged_contents` looks at them once
a step, before any kernel does. Everything here raises ValueError that begins with the op's name.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

F32, I64 = torch.float32, torch.int64


def sizes(op: str, name: str, x: Tensor, dims: int = 2) -> tuple[int, ...]:
    """The shape of x, which has so many dimensions."""
    shape = x.shape
    if len(shape) != dims:
        raise wrong(op, name, x, f"of {dims} dimensions")
    return shape


def matrix(
    op: str,
    name: str,
    x: Tensor,
    columns: int,
    rows: int | None = None,
    dtype: torch.dtype = F32,
) -> tuple[int, int]:
    """(address, elements from row to row) of x[rows, columns], whose rows have no gaps and may lie
    anywhere. `rows` None: any number."""
    shape, stride = x.shape, x.stride()
    if (
        x.dtype is not dtype
        or len(shape) != 2
        or shape[1] != columns
        or (rows is not None and shape[0] != rows)
        or (stride[1] != 1 and columns > 1)
        or not x.is_cpu
    ):
        count = "rows" if rows is None else rows
        raise wrong(op, name, x, f"{dtype} [{count}, {columns}] with rows that have no gaps")
    return x.data_ptr(), stride[0]


def target(op: str, x: Tensor, rows: int, columns: int) -> tuple[int, int]:
    """`matrix` of a result, float32: no two rows share memory."""
    address, stride = matrix(op, "out", x, columns, rows)
    if stride < columns and rows > 1:
        raise wrong(op, "out", x, f"rows of {columns} that do not share memory")
    return address, stride


def heads_of(op: str, name: str, x: Tensor, rows: int, heads: int, size: int) -> tuple[int, int]:
    """(address, elements from row to row) of float32 x[rows, heads, size], each row without
    gaps."""
    shape, stride = x.shape, x.stride()
    if (
        x.dtype is not F32
        or shape != (rows, heads, size)
        or stride[2] != 1
        or (stride[1] != size and heads > 1)
        or not x.is_cpu
    ):
        raise wrong(op, name, x, f"float32 [{rows}, {heads}, {size}] of neighboring heads")
    return x.data_ptr(), stride[0]


def block(op: str, name: str, x: Tensor, *shape: int, dtype: torch.dtype = F32) -> int:
    """The address of a contiguous x of this shape."""
    if x.dtype is not dtype or x.shape != shape or not x.is_contiguous() or not x.is_cpu:
        raise wrong(op, name, x, f"contiguous {dtype} of shape {shape}")
    return x.data_ptr()


def optional(op: str, name: str, x: Tensor | None, *shape: int) -> int:
    """`block` of float32, 0 for none."""
    return 0 if x is None else block(op, name, x, *shape)


def indices(op: str, name: str, x: np.ndarray, count: int, end: int) -> None:
    """Of numpy's own: [count] whole numbers in 0..end-1."""
    if x.shape != (count,) or (count and not 0 <= int(x.min()) <= int(x.max()) < end):
        raise ValueError(f"{op}: {name} must be {count} numbers of 0..{end - 1}, not {x}")


def paged_contents(
    op: str,
    *,
    slots: np.ndarray,
    table: np.ndarray,
    lengths: np.ndarray,
    starts: np.ndarray | None,
    pages: int,
    page_size: int,
    longest: int | None,
) -> None:
    """slots[T], table[S, any], lengths[S] and, where spans are not one token each, starts[S + 1]
    of a step lead to `pages` pages and nowhere else. No row is longer than `longest`."""
    below(op, "step.slots", slots, pages * page_size)
    below(op, "step.page_table", table, pages)
    reach = table.shape[1] * page_size
    reach = reach if longest is None else min(reach, longest)
    if starts is None:
        below(op, "step.lengths less one", lengths - 1, reach)
        return
    counts = np.diff(starts)
    if starts[0] != 0 or starts[-1] != len(slots) or np.min(counts) < 0:
        raise ValueError(f"{op}: step.query_starts {starts} do not divide {len(slots)} tokens")
    below(op, "step.lengths", lengths, reach + 1)
    below(op, "step.lengths less the spans' tokens", lengths - counts, reach)


def below(op: str, name: str, x: np.ndarray, end: int) -> None:
    """int64 of any shape, each in 0..end-1. (Negative ones are large without their sign.)"""
    if x.size and x.view(np.uint64).max() >= end:
        raise ValueError(
            f"{op}: {name} must be in 0..{end - 1}, not {int(x.min())}..{int(x.max())}"
        )


def require(op: str, holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{op}: {what}")


def wrong(op: str, name: str, x: Tensor, wanted: str) -> ValueError:
    return ValueError(
        f"{op}: {name} must be {wanted}, not {x.dtype} of shape {tuple(x.shape)} with strides "
        f"{tuple(x.stride())} on {x.device}"
    )
