"""Ranks over memory that all of a node map, by kernels: kernels/collectives.inc.

Where a group is on several nodes, each has the whole memory, and the first rank on it fills in what
the others have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cpu.native import I64, Kernels, block, matrix, optional, require, sizes
from vivace.platforms.cpu.native_segments import require_tree, words_at
from vivace.platforms.cpu.pipe import REGION_BYTES, NodePipe, SharedMemoryPipe
from vivace.platforms.dispatch import ExpertSpread
from vivace.platforms.errors import CaptureError
from vivace.platforms.groups import SINGLE_RANK, Group, Pipe
from vivace.platforms.partial_sums import SharedPairs
from vivace.platforms.rendezvous import ONE_NODE, NodeSocket, NodeSockets, RankMemory, pages

Meeting = Callable[[int, int], tuple[int, ...]]
"""(rows, columns) of this rank's share -> words of the operation that waits for the others"""
LINE = 64
"""bytes of a cache line"""
SLOT_BYTES = 16 << 20
"""what a rank shares at once; longer inputs come in pieces"""


def first_slot(ranks: int) -> int:
    """Bytes in front of the slots: a line of each rank."""
    return pages(LINE * ranks)


def region_bytes(ranks: int) -> int:
    """The lines, and two slots of each rank"""
    return first_slot(ranks) + 2 * ranks * SLOT_BYTES


class SharedMemoryGroup:
    """Sums are added in the order of the ranks: every rank has the same bits, and they are the same
    in every run. Captured steps may have sums and gathers in them.

    A rank that waits for one that has died waits until `RankMemory.abandon`; what a captured step
    gets then is nonsense, and its end says so (`graphs.py`).
    """

    def __init__(
        self,
        kernels: Kernels,
        memory: RankMemory,
        rank: int,
        size: int,
        *,
        sockets: NodeSockets = ONE_NODE,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """`ranks`: its members, as `sockets` counts them; None: all there are"""
        self.rank, self.size = rank, size
        self._kernels = kernels
        self._memory = memory
        self._sockets = sockets
        opened = sockets.open(memory.length, range(size) if ranks is None else ranks)
        region = memory.take(region_bytes(size))
        self._mapped = np.frombuffer(region, np.uint8), np.frombuffer(memory.first, np.uint8)
        self._own = np.zeros(1, np.int64)
        """collectives that this rank has met the others in"""
        self._lines, self._group = (mapped.ctypes.data for mapped in self._mapped)
        self._slots = self._lines + first_slot(size), SLOT_BYTES
        self._widths: dict[tuple[int, ...], np.ndarray] = {}
        self._here = *self._slots, rank, size, self._own.ctypes.data
        self._of_all = *self._slots, size, self._own.ctypes.data
        share, add = ("share_rows", "q" * 9), ("add_shares", "q" * 9)
        meet, self._meeting = self._meet_here() if opened is None else self._meet_nodes(opened)
        self._sum = kernels.sequence(share, meet, add)
        self._share, self._meet = kernels.sequence(share, meet), kernels.operation(*meet)
        self._add = kernels.operation(*add)
        self._gather_rows = kernels.operation("gather_rows", "q" * 8)
        self._gather = kernels.sequence(share, meet, ("gather_shares", "q" * 7))
        self._share_pairs = kernels.operation("share_pairs", "q" * 11)
        self._combine = kernels.operation("combine_pairs", "q" * 16)
        self._offer = kernels.operation("offer_rows", "q" * 10)
        self._pull_rows = kernels.operation("pull_rows", "q" * 12)
        self._return = kernels.operation("return_rows", "q" * 12)
        self._collect = kernels.operation("collect_rows", "q" * 13)

    def divide(self, parts: Sequence[Sequence[int]]) -> Group:
        mine: Group | None = None
        for part in parts:
            if self.rank not in part:
                self._memory.skip(region_bytes(len(part)))
            elif len(part) == 1:
                mine = SINGLE_RANK
                self._memory.skip(region_bytes(1))
            else:
                place = part.index(self.rank)
                mine = SharedMemoryGroup(
                    self._kernels, self._memory, place, len(part), sockets=self._sockets, ranks=part
                )
        if mine is None:
            raise ValueError(f"rank {self.rank} is in none of {parts}")
        return mine

    def connect(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Pipe]:
        found: dict[tuple[int, int], Pipe] = {}
        for pair in pairs:
            if self.rank not in pair:
                self._memory.skip(REGION_BYTES)
            elif ends := self._sockets.open(self._memory.length, sorted(pair)):
                found[pair] = NodePipe(self._kernels, self._memory, ends[0])
                self._memory.skip(REGION_BYTES)
            else:
                found[pair] = SharedMemoryPipe(self._kernels, self._memory)
        return found

    def _meet_here(self) -> tuple[tuple[str, str], Meeting]:
        """To wait for the shares of the others, and its words."""
        place = self._group, self._lines, *self._here[2:]
        return ("meet", "q" * 6), lambda rows, columns: (rows or 1, *place)

    def _meet_nodes(self, sockets: Sequence[NodeSocket]) -> tuple[tuple[str, str], Meeting]:
        """The same across nodes: the first rank of each sends what it has."""
        self._ends = np.array(
            [(end.socket, end.first, end.count) for end in sockets], np.int64
        ).reshape(-1, 3)
        place = self._group, self._lines, *self._here[2:]
        far = *self._slots, self._ends.ctypes.data, len(self._ends)
        return ("meet_nodes", "q" * 11), (
            lambda rows, columns: (rows or 1, columns if rows else 0, *place, *far)
        )

    def sum(self, x: Tensor) -> Tensor:
        rows, columns = sizes("sum", "x", x)
        address = block("sum", "x", x, rows, columns)
        for first, last in self._pieces(rows, columns):
            some, part = last - first, address + 4 * first * columns
            self._sum(
                *(some, part, columns, columns, *self._here),
                *self._meeting(some, columns),
                *(some, part, columns, 0, 0, *self._of_all),
            )
            self._check_ranks()
        return x

    def gather_rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        rows, columns = sizes("gather_rows", "x", x)
        require("gather_rows", rows == counts[self.rank], f"{rows} rows of {list(counts)}")
        same = self._capture_same("gather_rows", counts)
        out = self._kernels.empty(sum(counts), columns)
        starts = np.cumsum([0, *counts[:-1]])
        for first, last in self._pieces(max(counts), columns):
            some = np.clip(np.array(counts) - first, 0, last - first)
            self._exchange(x[first : first + some[self.rank]], columns)
            together = first == 0 and last >= max(counts)
            part = out if together else self._kernels.empty(int(some.sum()), columns)
            self._gather_rows(
                len(part),
                part.data_ptr(),
                columns,
                0 if same else some.ctypes.data,
                *self._of_all,
            )
            if not together:
                for start, piece in zip(starts, part.split(some.tolist()), strict=True):
                    out[start + first : start + first + len(piece)] = piece
        return out

    def reduce_scatter(self, x: Tensor, counts: Sequence[int], place: int) -> Tensor:
        rows, columns = sizes("reduce_scatter", "x", x)
        require("reduce_scatter", rows == sum(counts), f"{rows} rows of {list(counts)}")
        same = self._capture_same("reduce_scatter", counts)
        start, out = sum(counts[:place]), self._kernels.empty(counts[place], columns)
        for first, last in self._pieces(rows, columns):
            self._exchange(x[first:last], columns)
            begin, end = max(first, start), min(last, start + counts[place])
            if begin < end:
                self._add(
                    end - begin,
                    out[begin - start :].data_ptr(),
                    columns,
                    0 if same else begin - first,
                    place if same else 0,
                    *self._of_all,
                )
        return out

    def dispatch(self, x: Tensor, spread: ExpertSpread) -> Tensor:
        rows, columns = sizes("offer_rows", "x", x)
        engine, engines = spread.engine(self.rank, self.size), len(spread.counts)
        require("offer_rows", rows == spread.counts[engine], f"{rows} rows of {spread.counts}")
        out = self._kernels.empty(sum(spread.counts), columns)
        pieces = self._pieces(max(spread.counts), columns * engines)
        for first, last in pieces:
            if len(pieces) == 1:
                self._pull(x, spread, out)
                continue
            piece = spread.cut(first, last)
            found = self._kernels.empty(sum(piece.counts), columns)
            self._pull(x[first : first + piece.counts[engine]], piece, found)
            for other in range(engines):
                start = spread.tokens(other).start + first
                tokens = piece.tokens(other)
                out[start : start + len(tokens)] = found[tokens.start : tokens.stop]
        return out

    def _pull(self, x: Tensor, spread: ExpertSpread, out: Tensor) -> None:
        engines, columns = len(spread.counts), x.shape[1]
        counts, placed = self._counts("dispatch", spread.counts), self._placed(spread)
        address, stride = matrix("offer_rows", "x", x, columns)
        self._offer(len(x), address, stride, columns, *self._here, engines)
        self._meet_others(len(x), columns)
        where = counts.ctypes.data if counts is not None else 0
        self._pull_rows(len(out), out.data_ptr(), columns, where, *placed, *self._of_all, engines)

    def collect(self, y: Tensor, spread: ExpertSpread) -> Tensor:
        rows, columns = sizes("return_rows", "y", y)
        engine, engines = spread.engine(self.rank, self.size), len(spread.counts)
        require("return_rows", rows == sum(spread.counts), f"{rows} rows of {spread.counts}")
        out = self._kernels.empty(spread.counts[engine], columns)
        pieces = self._pieces(max(spread.counts), columns * engines)
        for first, last in pieces:
            if len(pieces) == 1:
                self._give_back(y, spread, out)
                continue
            piece = spread.cut(first, last)
            starts = [spread.tokens(other).start + first for other in range(engines)]
            parts = [y[at : at + n] for at, n in zip(starts, piece.counts, strict=True)]
            self._give_back(torch.cat(parts), piece, out[first : first + piece.counts[engine]])
        return out

    def _give_back(self, y: Tensor, spread: ExpertSpread, out: Tensor) -> None:
        engines, columns = len(spread.counts), y.shape[1]
        counts, placed = self._counts("collect", spread.counts), self._placed(spread)
        address, stride = matrix("return_rows", "y", y, columns)
        self._return(len(y), address, stride, columns, *placed, *self._here)
        self._meet_others(len(y), columns)
        where = counts.ctypes.data if counts is not None else 0
        self._collect(len(out), out.data_ptr(), columns, where, *placed, *self._here, engines)

    def _counts(self, what: str, counts: Sequence[int]) -> np.ndarray | None:
        """None while a step is captured, where all have as many"""
        return None if self._capture_same(what, counts) else np.array(counts, np.int64)

    def _placed(self, spread: ExpertSpread) -> tuple[int, int, int]:
        rows, top = sizes("pull_rows", "placed", spread.placed)
        require("pull_rows", rows == sum(spread.counts), f"{rows} of {spread.counts}")
        address = block("pull_rows", "placed", spread.placed, rows, top, dtype=torch.int64)
        return address, top, spread.each

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        rows, columns = sizes("gather", "x", x)
        require("gather", columns == widths[self.rank], f"{columns} of {list(widths)}")
        wide = self._widths.setdefault(tuple(widths), np.array(widths, np.int64))
        out = self._kernels.empty(rows, sum(widths))
        for first, last in self._pieces(rows, max(widths)):
            address, stride = matrix("gather", "x", x[first:last], columns)
            self._gather(
                *(last - first, address, stride, columns, *self._here),
                *self._meeting(last - first, columns),
                *(last - first, out[first:last].data_ptr(), wide.ctypes.data, *self._of_all),
            )
            self._check_ranks()
        return out

    def combine_pairs(
        self,
        x: Tensor,
        weights: Tensor | None,
        places: Tensor,
        pairs: SharedPairs,
        own: slice | None = None,
    ) -> Tensor:
        op = "combine_pairs"
        (rows, top), (_, width) = sizes(op, "places", places), sizes(op, "x", x)
        inside, mine = len(pairs.sums), pairs.sums[self.rank % len(pairs.sums)]
        require(op, self.size % inside == 0 and width % mine == 0, f"{width} numbers, {mine} sums")
        sums = self._widths.setdefault(pairs.sums, np.array(pairs.sums, np.int64)).ctypes.data
        merges = block(op, "merges", pairs.merges, sum(pairs.sums), dtype=I64)
        require_tree(op, words_at(merges, sum(pairs.sums)))
        at = block(op, "places", places, rows, top, dtype=I64)
        placed = block(op, "placed", pairs.placed, rows, top, dtype=I64)
        weighed = optional(op, "weights", weights, rows, top)
        source, columns, taken = matrix(op, "x", x, width), width // mine, own or slice(0, rows)
        out = self._kernels.empty(taken.stop - taken.start, columns)
        for first, last in self._pieces(rows, top * columns * max(pairs.sums)):
            before, count = first * top, last - first
            self._share_pairs(count, *source, width, at + 8 * before, top, *self._here)
            self._meet_others(count, top * width)
            begin, end = max(first, taken.start), min(last, taken.stop)
            if begin < end:
                to = out[begin - taken.start :].data_ptr(), columns, begin - first
                who = placed + 8 * before, top, pairs.first, pairs.each
                by = weighed and weighed + 4 * before
                self._combine(end - begin, *to, *who, by, inside, sums, merges, *self._of_all)
        return out

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        """By a gather of their bits, two floats each"""
        mine = torch.tensor([list(numbers)], dtype=torch.int64).view(torch.float32)
        found = self.gather(mine, [mine.shape[1]] * self.size).view(torch.int64)
        return found.view(self.size, -1).amin(0).tolist()

    def _pieces(self, rows: int, columns: int) -> list[tuple[int, int]]:
        """Ranges of rows that fit a slot; the same on every rank."""
        require("share_rows", 4 * columns <= SLOT_BYTES, f"rows of {columns} numbers")
        each = SLOT_BYTES // (4 * max(1, columns))
        if rows > each and self._kernels.capturing:
            raise CaptureError(
                f"ranks share at most {each} rows of {columns} numbers at once: give "
                f"--cuda-graph-max-bs {each} or less"
            )
        return [(first, min(first + each, rows)) for first in range(0, rows, each)]

    def _capture_same(self, what: str, counts: Sequence[int]) -> bool:
        """Whether a step is being captured, where all ranks have as many rows; a replay of it has
        fewer, and again all have as many."""
        if self._kernels.capturing and len(set(counts)) > 1:
            raise CaptureError(f"{what}: its counts {list(counts)} differ")
        return self._kernels.capturing

    def _exchange(self, part: Tensor, columns: int) -> None:
        """This rank's rows -> its slot; returns when those of all are there. Raises RankLost."""
        rows, place = part.shape[0], matrix("share_rows", "x", part, columns)
        self._share(rows, *place, columns, *self._here, *self._meeting(rows, columns))
        self._check_ranks()

    def _meet_others(self, rows: int, columns: int) -> None:
        """`columns`: numbers of a row in this rank's slot. Raises RankLost."""
        self._meet(*self._meeting(rows, columns))
        self._check_ranks()

    def _check_ranks(self) -> None:
        if not self._kernels.capturing:
            self._memory.check()
