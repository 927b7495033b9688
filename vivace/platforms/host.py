"""The only crossings between host arrays and tensors outside of the platforms' own code."""

from __future__ import annotations

from typing import Any

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
