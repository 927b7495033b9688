"""What a device is (facts, without torch) and what it offers (Platform, with torch)."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vivace.platforms.errors import PlatformError
from vivace.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from vivace.platforms.attention import AttentionBackend, Step
    from vivace.platforms.cache import CacheLayer, CacheMemory
    from vivace.platforms.groups import Group
    from vivace.platforms.host import ReadBack
    from vivace.platforms.ngrams import NgramIndex, NgramSettings
    from vivace.platforms.ops.sampling import SamplingOps
    from vivace.platforms.ops.table import Ops
    from vivace.platforms.rendezvous import Rendezvous
    from vivace.platforms.rows import RowColumns, RowOps


@dataclass(frozen=True, kw_only=True)
class PlatformFacts:
    """One device as the configuration sees it. Bytes are of the device's own memory."""

    name: str
    """"cpu", "cuda", "npu": the key of the option states"""
    device_name: str
    memory_bytes: int
    """total, after container limits"""
    available_bytes: int
    """free at the time of detection"""
    cores: int
    """CPU cores this process may use (affinity and quota)"""
    features: frozenset[str] = frozenset()
    """instruction sets that matter here: "avx2", "avx512f", "avx512_bf16", "amx_bf16", ..."""
    dtypes: tuple[str, ...] = ("float32",)
    """usable for weights, best first"""
    graphs: bool = False
    """steps can be captured and replayed"""
    page_sizes: tuple[int, ...] = (16, 1)
    """KV page sizes, preferred first; every size works"""
    cpu_kernels: bool = False
    """its ops are the native kernels that --disable-cpu-kernels replaces by torch's operations"""
    ray_device_key: str = "GPU"
    """what Ray counts such devices as: "CPU", "GPU" or "NPU"; see `ray status`"""
    on_cores: bool = False
    """workers compute on the machine's cores, which they share"""
    overlap: bool = True
    """the host can plan a step while the device computes another"""
    chunked_prefill_size: int = 8192
    """default: prompt tokens of one step"""
    max_running_requests: int = 2048
    """default: sequences at once"""


@dataclass(frozen=True, kw_only=True)
class PlatformSettings:
    """What of the configuration a platform needs to choose its ops."""

    threads: int | None = None
    """CPU threads for the ops; None = all cores it may use"""
    deterministic: bool = False
    """ops and attention whose rows do not depend on what they are batched with"""
    pinned: bool = False
    """each computing thread beside the engine's own stays on one core"""
    kernels: bool = False
    """native kernels where there are some; otherwise torch's own operations"""
    owns_process: bool = False
    """the process is there for the engine: torch's threads and what malloc keeps may be set for all
    of it. In a program that embeds one they are the program's."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step in which every row has as many tokens: 1, or more where drafts are verified."""

    rows: int
    tokens_per_row: int

    @property
    def tokens(self) -> int:
        return self.rows * self.tokens_per_row


class StepGraph(Protocol):
    """A captured step. Inputs and results lie in the buffers that were seen while capturing."""

    computes_all_rows: bool
    """Every replay computes all captured rows, as CUDA and NPU graphs do: whoever replays it has
    filled those behind the live ones with harmless ones."""

    @property
    def nbytes(self) -> int:
        """of the graph alone, without buffers"""
        ...

    def replay(self, step: Step, shape: StepShape) -> None:
        """Run it over the first rows of those that were captured, as many as `shape` has, which has
        their tokens per row. `step.host` has the lengths that some devices want to hear of."""
        ...


class GraphRecorder(Protocol):
    """Captures steps: CUDA graphs, NPU graphs, or the CPU's list of kernel calls."""

    most_tokens_per_row: int
    """of the shapes it captures"""

    @property
    def nbytes(self) -> int:
        """of the buffers that all graphs of this recorder share"""
        ...

    def capture(self, run: Callable[[], Tensor], shape: StepShape) -> tuple[StepGraph, Tensor]:
        """(the graph, where `run`'s result will be after a replay).

        Raises CaptureError naming the op when `run` does something that cannot be replayed.
        """
        ...


class Platform(Protocol):
    """The device side: an op table, attention, memory, graphs."""

    facts: PlatformFacts
    threads: int
    """that compute; fewer than asked for where the system allows no more"""
    ops: Ops
    instructions: str
    """whose operations compute, with which instruction set, for people who read measurements"""
    reads_blocks: bool
    """`pack_linear` and `embedding` take quantized blocks as they are stored"""

    def activations(self, matrices: Any) -> Any:
        """The torch.dtype of activations when matrices have this one."""
        ...

    def join(self, rendezvous: Rendezvous) -> Group:
        """The group of all ranks, exchanging by what is best here; they come one after the other.
        Raises CannotStart."""
        ...

    def recorder(self) -> GraphRecorder | None:
        """What captures steps here; None where they run eagerly."""
        ...

    def device(self) -> Any:
        """The torch.device tensors live on."""
        ...

    def cache(
        self,
        layers: Sequence[CacheLayer],
        pages: Sequence[int],
        page_size: int,
        dtype: Any,
        windows: Sequence[int] = (),
        slots: int = 0,
    ) -> CacheMemory:
        """Memory for what the layers keep, laid out as this platform's backend reads it. `pages`:
        of each group; `windows`: of the layers in groups 1, 2 ...; `slots`: that states have,
        the pages of their group among them; `dtype`: a torch.dtype."""
        ...

    def attention_backend(
        self, layers: Sequence[CacheLayer], memory: Any, dtype: Any, longest: int
    ) -> AttentionBackend:
        """`memory`: what `cache` made, of these layers. `dtype`: the torch.dtype of queries; the
        memory may hold another one. `longest`: most tokens a row can have."""
        ...

    def row_ops(self, columns: RowColumns) -> RowOps:
        """What reads and writes the rows of a worker."""
        ...

    def read_back(self, tensors: Sequence[Tensor]) -> ReadBack:
        """Bring tensors to the host."""
        ...

    def sampling(self) -> SamplingOps:
        """From logits to tokens."""
        ...

    def ngram_index(self, settings: NgramSettings) -> NgramIndex:
        """What finds n-gram drafts on the host. Raises MemoryError."""
        ...

    def available_bytes(self) -> int:
        """Free memory now."""
        ...

    def trim(self) -> None:
        """Give memory that is kept for the next step back to the system: none comes for a while."""
        ...


DETECTORS: Registry[Callable[[], PlatformFacts]] = Registry(
    "device", {"cpu": "vivace.platforms.cpu.facts:detect"}
)
"""--device -> what finds its facts, without torch; the first is the default"""
PLATFORMS: Registry[Callable[[PlatformFacts, PlatformSettings], Platform]] = Registry(
    "platform", {"cpu": "vivace.platforms.cpu.platform:cpu_platform"}
)
"""`PlatformFacts.name` -> what makes its Platform; may import torch and set its thread count"""

INSTRUCTION_SETS: Registry[Callable[[], str]] = Registry(
    "platform", {"cpu": "vivace.platforms.cpu.library:best_isa"}
)
"""`PlatformFacts.name` -> what asks which one its native kernels use here, without torch"""


def detect(device: str | None) -> PlatformFacts:
    """Facts of `device` (None or "auto" = the best one this version can use). No torch.

    Raises PlatformError for a device this version cannot serve on.
    """
    name = (device or "auto").split(":")[0].lower()
    if name == "auto":
        name = next(iter(DETECTORS))
    if name not in DETECTORS:
        raise PlatformError(
            f"--device {device}: not supported yet; leave --device out or use --device cpu"
        )
    return DETECTORS.get(name)()


def load_platform(facts: PlatformFacts, settings: PlatformSettings) -> Platform:
    """The device side of `facts`."""
    if facts.name not in PLATFORMS:
        raise PlatformError(f"platform {facts.name!r} is not supported yet; use cpu")
    return PLATFORMS.get(facts.name)(facts, settings)


def describe_arithmetic(facts: PlatformFacts) -> dict[str, str]:
    """Name -> value, in words: what machines must have alike, so that what ranks compute each
    for itself is the same on all. No torch. Raises NoKernels, StaleKernels."""
    from importlib import metadata  # a large module, for machines that share a server

    return {
        "instruction set": INSTRUCTION_SETS.get(facts.name)(),
        "torch": metadata.version("torch"),
        "page of memory": f"{mmap.PAGESIZE} bytes",
    }
