"""A platform whose steps are pending: nothing has arrived before somebody waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivace.platforms.ops.platform import ReferencePlatform
from vivace.platforms.platform import detect


class DelayedReadBack:
    """The tensors arrive when they are waited for, and not before."""

    here = False

    def __init__(self, tensors: Sequence[Tensor], device: DelayedPlatform) -> None:
        self._copies = [tensor.clone() for tensor in tensors]
        self._device = device

    def wait(self):
        assert not self._device.launching, "the host waits although nobody wants the result"
        return [copy.numpy() for copy in self._copies]


class DelayedPlatform(ReferencePlatform):
    """As on a device; `launching` while a step is prepared, when nothing may be read."""

    def __init__(self) -> None:
        super().__init__(detect("cpu"), torch.device("cpu"))
        self.launching = False

    def read_back(self, tensors: Sequence[Tensor]) -> DelayedReadBack:
        return DelayedReadBack(tensors, self)
