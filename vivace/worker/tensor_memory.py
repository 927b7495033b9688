"""How many bytes of tensors a model holds: counted, not estimated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import NamedTuple

from torch import Tensor, nn


def tensor_bytes(root: object) -> int:
    """Of every tensor that can be reached from `root`. Memory that several share counts once, and
    of a segment that weights lie in one behind the other (platforms/cpu/huge_pages.py) no more than
    they take of it."""
    counted, before = 0, HeldBytes(0, 0, 0)
    for block in sorted(memory_blocks(root)):
        end = before.end if block.opaque == before.opaque else 0
        counted += max(0, block.end - max(block.start, end))
        before = block._replace(end=max(block.end, end))
    return counted


class HeldBytes(NamedTuple):
    """Bytes `start` .. `end` - 1 of memory, or of a tensor that has no address."""

    opaque: int
    """which one; 0: memory"""
    start: int
    end: int


def memory_blocks(root: object) -> set[HeldBytes]:
    """Of the tensors that can be reached from `root` through objects of ours, containers and torch
    modules."""
    found: set[HeldBytes] = set()
    seen: set[int] = set()
    left: list[object] = [root]
    while left:
        one = left.pop()
        if one is None or isinstance(one, (str, int, float, type)) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.add(memory_block(one))
        else:
            left.extend(members(one))
    return found


def memory_block(tensor: Tensor) -> HeldBytes:
    size = tensor.element_size()
    if tensor.is_mkldnn:  # it has no storage that could be asked
        return HeldBytes(id(tensor), 0, tensor.numel() * size)
    first = tensor.data_ptr()
    if tensor.numel() == 0:
        return HeldBytes(0, first, first)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((length - 1) * stride for length, stride in steps)
    return HeldBytes(0, first, first + (1 + reach) * size)


def members(one: object) -> Iterable[object]:
    """Attributes of objects of this package; functions and everything foreign are leaves."""
    if isinstance(one, nn.Module):
        return [*one.parameters(), *one.buffers()]
    if isinstance(one, dict):
        return one.values()
    if isinstance(one, list | tuple):
        return one
    if type(one).__module__.startswith("vivace.") and hasattr(one, "__dict__"):
        return vars(one).values()
    if is_dataclass(one):
        return [getattr(one, field.name) for field in fields(one)]
    return ()
