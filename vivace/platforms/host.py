"""The only crossings between host arrays and tensors outside of the platforms' own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on `device`: on the CPU the same memory, elsewhere a copy that the device's next
    operations find there."""
    tensor = torch.from_numpy(array)
    return tensor if device == HOST else tensor.to(device, non_blocking=True)


def download(tensor: Tensor) -> np.ndarray[Any, Any]:
    """What the tensor holds, on the host: on the CPU the same memory, elsewhere a copy that waits
    for the device. Only for a step whose result is wanted now."""
    return tensor.numpy() if tensor.device == HOST else tensor.cpu().numpy()


HOST = torch.device("cpu")


class ReadBack(Protocol):
    """Tensors of a step on their way to the host."""

    here: bool
    """`wait` does not wait"""

    def wait(self) -> list[np.ndarray]: ...


class SharedReadBack:
    """Of tensors in host memory: they are there."""

    here = True

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in self._tensors]


class CopiedReadBack:
    """Of a device: copies into pinned memory that begin now, behind what it was told so far, and
    are waited for alone. Steps that it is told later do not delay them."""

    here = False

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._copies = [
            torch.empty_like(tensor, device=HOST, pin_memory=True).copy_(tensor, non_blocking=True)
            for tensor in tensors
        ]
        self._event = torch.Event(tensors[0].device)
        self._event.record()

    def wait(self) -> list[np.ndarray]:
        self._event.synchronize()
        return [copy.numpy() for copy in self._copies]
