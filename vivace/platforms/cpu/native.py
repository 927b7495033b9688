"""The native kernels as Python sees them: a library, its thread pool, calls and graphs.

The library has a plain C interface and knows neither torch nor Python, so one build serves every
version of both. An operation is a number and a flat array of 8-byte words (pointers, int64,
double). The same bytes are run at once or, while a graph is captured, kept in it.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cpu.library import LIBRARY, NoKernels, load_library

SPIN_MICROSECONDS = 60
"""an idle worker looks so long for the next operation before it sleeps"""
ALIGNMENT = 64
"""bytes"""

Words = Callable[..., None]
"""Takes the operation's words in order; pointers are `Tensor.data_ptr()`, 0 for none."""


class Kernels:
    """An opened library with its own threads.

    `threads` counts the calling thread. `isa` forces an instruction set ("avx512vnni",
    "avx512", "avx2", "portable", "neondot", "neon"); None is the best one. `pinned` keeps worker i
    on the i-th core that this process may use; the calling thread stays free. Raises NoKernels.
    """

    def __init__(
        self,
        threads: int,
        *,
        isa: str | None = None,
        pinned: bool = False,
        library: Path = LIBRARY,
    ) -> None:
        self._library = load_library(library)
        wanted = isa.encode() if isa else None
        before = running_threads()
        self._context = self._library.vv_open(wanted, threads, SPIN_MICROSECONDS, int(pinned))
        if not self._context:
            raise NoKernels(f"this CPU does not have the instruction set {isa!r}")
        weakref.finalize(self, self._library.vv_close, self._context)
        self.threads = threads
        self.started = min(threads, 1 + running_threads() - before) if before else threads
        """threads there are: a container's limit may be lower"""
        self.isa: str = self._library.vv_isa(self._context).decode()
        self._graph: Graph | None = None

    @property
    def below(self) -> str | None:
        """The best instruction set after this one; None when this is the last."""
        name = self._library.vv_isa_below(self._context)
        return name.decode() if name else None

    def operation(self, name: str, layout: str) -> Words:
        """The operation `name` as a function of its words.

        `layout`: one character a word, as the struct module spells them: q = pointer or int64,
        d = double. Raises ValueError when the library's operation takes another number of words.
        """
        number = self._number(name)
        wanted = self._library.vv_words(self._context, number)
        packing = struct.Struct("=" + layout)
        if packing.size != 8 * wanted:
            raise ValueError(f"{name}: {packing.size // 8} words given, the library takes {wanted}")
        pack, run, context = packing.pack, self._library.vv_run, self._context

        def call(*words: float) -> None:
            if self._graph is None:
                run(context, number, pack(*words))
            else:
                self._graph.add(number, pack(*words))

        return call

    def address(self, name: str) -> int:
        """The operation `name` as a word of another operation, which runs it."""
        return self._library.vv_address(self._context, self._number(name))

    def _number(self, name: str) -> int:
        number = self._library.vv_find(self._context, name.encode())
        if number < 0:
            raise ValueError(
                f"the kernel library has no operation {name!r}; if it was built from older "
                "sources, build it again (make kernels)"
            )
        return number

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer for a result: torch's while running, the graph's own while capturing."""
        if self._graph is None:
            return torch.empty(shape, dtype=dtype)
        return self._graph.arena.empty(shape, dtype)

    @property
    def capturing(self) -> bool:
        """Operations are kept, not run: what their inputs will hold is not known yet."""
        return self._graph is not None

    @contextmanager
    def capture(self, arena: Arena) -> Iterator[Graph]:
        """Operations called inside are kept in the graph that is handed out, and not run."""
        if self._graph is not None:
            raise RuntimeError("a graph is already being captured")
        graph = Graph(self, self._library, self._context, arena)
        self._graph = graph
        try:
            yield graph
        finally:
            self._graph = None


class Graph:
    """A list of calls over fixed buffers, replayed by one native call."""

    def __init__(self, kernels: Kernels, library: ctypes.CDLL, context: int, arena: Arena) -> None:
        self.arena = arena
        # Calls name operations of the context, which is closed when the kernels are gone.
        self._kernels = kernels
        self._library, self._context = library, context
        self._graph = library.vv_graph_new()
        if not self._graph:
            raise MemoryError("no memory for a graph of kernels")
        weakref.finalize(self, library.vv_graph_free, self._graph)
        self._rows: int | None = None

    def add(self, number: int, words: bytes) -> None:
        (rows,) = struct.unpack_from("=q", words)
        self._rows = rows if self._rows is None else min(rows, self._rows)
        self._library.vv_graph_add(self._context, self._graph, number, words)

    def replay(self, rows: int) -> None:
        """Run every call with `rows` instead of the captured number of rows. Raises ValueError for
        more than those."""
        if not 0 <= rows <= (self._rows or 0):
            raise ValueError(f"replay: {rows} rows of a graph that was captured for {self._rows}")
        self._library.vv_graph_replay(self._context, self._graph, rows)

    @property
    def calls(self) -> int:
        return self._library.vv_graph_calls(self._graph)

    @property
    def nbytes(self) -> int:
        """of the list itself; the buffers are the arena's"""
        return self._library.vv_graph_bytes(self._graph)


class Arena:
    """Buffers of captured steps. A buffer goes back when the last tensor on it is gone, so that
    the next operation of the same capture may use it again, as it will when replayed.

    Graphs may share an arena when they never run at the same time.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self.nbytes = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = max(1, -(-prod(shape) * dtype.itemsize // ALIGNMENT)) * ALIGNMENT
        block = self._take(size)
        # A view of its own: torch's storage keeps it alive, and its end is the buffer's return.
        view = block[:size]
        weakref.finalize(view, self._free.append, block).atexit = False
        return torch.from_numpy(view).view(dtype)[: prod(shape)].view(shape)

    def _take(self, size: int) -> np.ndarray:
        fitting = [block for block in self._free if size <= block.nbytes <= 2 * size]
        if fitting:
            smallest = min(fitting, key=lambda block: block.nbytes)
            del self._free[next(i for i, block in enumerate(self._free) if block is smallest)]
            return smallest
        self.nbytes += size
        raw = np.zeros(size + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]


def running_threads() -> int:
    """Of this process; 0 where nobody tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 0
