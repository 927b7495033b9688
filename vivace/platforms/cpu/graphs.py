"""Captured steps on the CPU: a list of kernel calls, replayed by one native call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vivace.platforms.cpu.native import Arena, Graph, Kernels
from vivace.platforms.errors import CaptureError
from vivace.platforms.platform import StepShape
from vivace.platforms.rendezvous import RankMemory

VIEWS = frozenset(
    "alias as_strided chunk detach expand lift_fresh narrow permute reshape select slice split "
    "split_with_sizes squeeze t transpose unbind unflatten unsqueeze view _unsafe_view".split()
)
"""aten operations that move no number: only their result's address is recorded, by its user"""


class CpuGraphs:
    """GraphRecorder of native kernels. Graphs share one arena: they never run at the same time."""

    most_tokens_per_row = 1
    """the attention kernels look at the lengths of longer spans while they are called"""

    def __init__(self, kernels: Kernels, memory: RankMemory | None = None) -> None:
        """`memory`: of ranks that meet in steps. Where one of them has died replays raise RankLost:
        nobody waits then, so what they computed is nonsense."""
        self._kernels = kernels
        self._check = None if memory is None else memory.check
        self._arena = Arena()

    @property
    def nbytes(self) -> int:
        return self._arena.nbytes

    def capture(self, run: Callable[[], Tensor], shape: StepShape) -> tuple[Graph, Tensor]:
        with self._kernels.capture(self._arena) as graph, KernelsOnly():
            result = run()
        graph.check = self._check
        return graph, result


class KernelsOnly(TorchDispatchMode):
    """Refuses every torch operation that computes: a replay would leave it out."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, seconds of a start, to keep it out of this class."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            raise CaptureError(
                f"{func} is torch's, not a kernel: a captured step would leave it out. "
                "Serve with --disable-cuda-graph"
            )
        return func(*args, **(kwargs or {}))
