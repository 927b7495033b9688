"""The native kernels as Python sees them: a library, its thread pool, calls, graphs, and checks.

The library has a plain C interface and knows neither torch nor Python, so one build serves every
version of both. An operation is a number and a flat array of 8-byte words (pointers, int64,
double). The same bytes are run at once or, while a graph is captured, kept in it.

A kernel believes its words: sizes, strides and addresses. So every tensor is compared with the
sizes beside it, at every call; a captured step pays once, when it is captured. Page tables, slots
and lengths are contents: worker/step_inputs.py makes them right, and `paged_contents` looks at them
once a step, before any kernel does. The checks raise ValueError that begins with the op's name.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cpu.library import LIBRARY, NoKernels, StaleKernels, load_library
from vivace.platforms.errors import CaptureError
from vivace.platforms.platform import StepShape

F32, I64 = torch.float32, torch.int64
SPIN_MICROSECONDS = 60
"""an idle worker looks so long for the next operation before it sleeps"""
ALIGNMENT, LARGE_RESULT = 64, 128 << 10
"""bytes"""
MOST_AT_ONCE = 8
"""operations of a call, as in kernels/api.cpp"""

Words = Callable[..., None]
"""Takes the operation's words in order; pointers are `Tensor.data_ptr()`, 0 for none."""


class Kernels:
    """An opened library with its own threads.

    `threads` counts the calling thread. `isa` forces an instruction set ("avx512bf16",
    "avx512vnni", "avx512", "avx2", "portable", "neondot", "neon"); None is the best one. `pinned`
    keeps worker i on the i-th core that this process may use; the calling thread stays free.
    Raises NoKernels, StaleKernels.
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
        self._results = Arena()

    @property
    def below(self) -> str | None:
        """The best instruction set after this one; None when this is the last."""
        name = self._library.vv_isa_below(self._context)
        return name.decode() if name else None

    def operation(self, name: str, layout: str) -> Words:
        """The operation `name` as a function of its words.

        `layout`: one character a word, as the struct module spells them: q = pointer or int64,
        d = double. Raises StaleKernels when the library's operation takes another number of words.
        """
        return self.sequence((name, layout))

    def sequence(self, *operations: tuple[str, str]) -> Words:
        """Up to `MOST_AT_ONCE` operations, (name, layout) of each, as one function of all words."""
        if len(operations) > MOST_AT_ONCE:
            raise ValueError(f"{len(operations)} operations; a call has {MOST_AT_ONCE} at most")
        numbers = [self._checked(name, layout) for name, layout in operations]
        packing = struct.Struct("=" + "".join(layout for _, layout in operations))
        ends = [8 * sum(len(one[1]) for one in operations[:n]) for n in range(1, len(numbers) + 1)]
        pack, run, context = packing.pack, self._library.vv_run, self._context
        together, count = struct.pack(f"={len(numbers)}q", *numbers), len(numbers)

        def call(*words: float) -> None:
            packed = pack(*words)
            if self._graph is None:
                run(context, together, count, packed)
                return
            for number, begin, end in zip(numbers, [0, *ends], ends, strict=False):
                self._graph.add(number, packed[begin:end])

        return call

    def _checked(self, name: str, layout: str) -> int:
        """The number of an operation. Raises StaleKernels."""
        number = self._number(name)
        wanted = self._library.vv_words(self._context, number)
        if len(layout) != wanted:
            raise StaleKernels(f"{name}: {len(layout)} words given, the library takes {wanted}")
        return number

    def address(self, name: str) -> int:
        """The operation `name` as a word of another operation, which runs it."""
        return self._library.vv_address(self._context, self._number(name))

    def _number(self, name: str) -> int:
        number = self._library.vv_find(self._context, name.encode())
        if number < 0:
            raise StaleKernels(f"no operation {name!r}")
        return number

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer for a result: the graph's own while capturing. While running torch's, or, from
        LARGE_RESULT on, one that is kept for later results: on malloc's heap small blocks settle in
        the hole that a large one leaves, and a batch that grows would leave one hole for each of
        its sizes (50 MiB of logits for 32 rows of 49,152)."""
        if self._graph is not None:
            return self._graph.arena.empty(shape, dtype)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < LARGE_RESULT:
            return torch.empty(shape, dtype=dtype)
        whole = self._results.empty((1 << (nbytes - 1).bit_length(),), torch.uint8)
        return whole[:nbytes].view(dtype).view(shape)

    def trim(self) -> None:
        """Give back the memory that is kept for large results."""
        self._results = Arena()

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
        graph.check_rows()


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
        self._counts: set[int] = set()
        """rows of the calls"""
        self._rows = 0
        """the least of them"""
        self.computes_all_rows = False
        self.check: Callable[[], None] | None = None
        """asked behind each replay; raises what is wrong with its numbers"""

    def add(self, number: int, words: bytes) -> None:
        (rows,) = struct.unpack_from("=q", words)
        if rows not in self._counts:
            self._counts.add(rows)
            self._rows = min(self._counts)
        self._library.vv_graph_add(self._context, self._graph, number, words)

    def check_rows(self) -> None:
        """Raises CaptureError where a call's rows are no multiple of the least."""
        if any(count % max(1, self._rows) for count in self._counts):
            raise CaptureError(
                f"calls of {sorted(self._counts)} rows cannot be replayed with fewer"
            )

    def replay(self, step: object, shape: StepShape) -> None:
        """As `StepGraph`: the kernels read everything else in the captured buffers."""
        self.run(shape.rows)
        if self.check is not None:
            self.check()

    def run(self, rows: int) -> None:
        """Run every call with `rows` instead of the captured number of rows, and one that has
        several for each of those (pairs of a token and an expert) with as many. Raises ValueError
        for more than those."""
        if not 0 <= rows <= self._rows:
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
    """Buffers of results. A buffer goes back when the last tensor on it is gone, so that the next
    operation of the same capture may use it again, as it will when replayed.

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
        return new_block(size)


def new_block(size: int) -> np.ndarray:
    """uint8[size] of zeros, aligned. A large one is a mapping of its own, with memory for what was
    touched, and goes back to the system with the last view of it."""
    if size >= LARGE_RESULT:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(mapped, np.uint8)
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def running_threads() -> int:
    """Of this process; 0 where nobody tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 0


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


def head_rows(op: str, name: str, x: Tensor, rows: int, heads: int, size: int) -> tuple[int, int]:
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


def spread_heads(
    op: str, name: str, x: Tensor, rows: int, heads: int, size: int
) -> tuple[int, int, int]:
    """(address, elements from row to row, from head to head) of float32 x[rows, heads, size], the
    numbers of each head without gaps; heads may lie anywhere."""
    shape, stride = x.shape, x.stride()
    if (
        x.dtype is not F32
        or shape != (rows, heads, size)
        or (stride[2] != 1 and size > 1)
        or not x.is_cpu
    ):
        raise wrong(op, name, x, f"float32 [{rows}, {heads}, {size}], each head without gaps")
    return x.data_ptr(), stride[0], stride[1]


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
    below(op, "step.slot_mapping", slots, pages * page_size)
    below(op, "step.page_table", table, pages)
    reach = table.shape[1] * page_size
    reach = reach if longest is None else min(reach, longest)
    if starts is None:
        below(op, "step.context_lens less one", lengths - 1, reach)
        return
    counts = np.diff(starts)
    if starts[0] != 0 or starts[-1] != len(slots) or np.min(counts) < 0:
        raise ValueError(f"{op}: step.query_starts {starts} do not divide {len(slots)} tokens")
    below(op, "step.context_lens", lengths, reach + 1)
    below(op, "step.context_lens less the spans' tokens", lengths - counts, reach)


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
