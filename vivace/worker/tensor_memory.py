"""How many bytes of tensors a model holds: counted, not estimated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn


def tensor_bytes(root: object) -> int:
    """Of every tensor that can be reached from `root`. Memory that several share counts once."""
    return sum(memory_blocks(root).values())


def memory_blocks(root: object) -> dict[object, int]:
    """Bytes of each piece of memory behind the tensors that can be reached from `root` through
    objects of ours, containers and torch modules."""
    found: dict[object, int] = {}
    seen: set[int] = set()
    left: list[object] = [root]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            key, size = memory_block(one)
            found[key] = size
        else:
            left.extend(members(one))
    return found


def memory_block(tensor: Tensor) -> tuple[object, int]:
    """(what is the same for tensors on the same memory, bytes)"""
    if tensor.is_mkldnn:  # opaque: it has no storage that could be asked
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def members(one: object) -> Iterable[object]:
    if isinstance(one, nn.Module):
        return [*one.parameters(), *one.buffers()]
    if isinstance(one, dict):
        return one.values()
    if isinstance(one, list | tuple):
        return one
    if is_dataclass(one) and not isinstance(one, type):
        return [getattr(one, field.name) for field in fields(one)]
    return ours(one)


def ours(one: Any) -> Iterable[object]:
    """Attributes of objects of this package; functions and everything foreign are leaves."""
    if isinstance(one, type) or not type(one).__module__.startswith("vivace."):
        return ()
    return vars(one).values() if hasattr(one, "__dict__") else ()
