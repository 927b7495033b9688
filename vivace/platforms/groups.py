"""Ranks that share a layer, and what they do together.

`Group` is what layers see. With one rank everything is the identity, and layers leave it out.
"""

from __future__ import annotations

import ctypes
import socket
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from vivace.errors import CannotStart, RankLost, say
from vivace.platforms.dispatch import ExpertSpread, collect_rows, dispatch_rows
from vivace.platforms.partial_sums import SharedPairs, combine_gathered, spread_pairs
from vivace.platforms.rendezvous import Rendezvous

LONGEST_WAIT = timedelta(minutes=30)
"""of ranks for each other, in a collective of torch's; while they load, one may be long behind the
others. One that dies ends it at once, one that is stuck in a step ends by the watchdog."""
LOOPBACK_SECONDS = 5.0
MESSAGES_AHEAD = 4
"""that a sender need not wait for"""


class Pipe(Protocol):
    """One direction between two ranks. Who sends does not wait for who receives, but where that is
    several messages behind."""

    def send(self, x: Tensor) -> None:
        """x[n, m], copied; RankLost where the other one has gone"""
        ...

    def receive(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """-> [rows, columns], the oldest that was sent and not received; both ends know its shape.
        RankLost where none comes any more."""
        ...


class Group(Protocol):
    """Every rank of it calls the same of these in the same order. RankLost where one does not."""

    @property
    def rank(self) -> int:
        """0 .. size - 1"""
        ...

    @property
    def size(self) -> int: ...

    def sum(self, x: Tensor) -> Tensor:
        """x of every rank, added up, in x's memory"""
        ...

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """x[n, widths[rank]] of each rank -> [n, sum of widths]"""
        ...

    def gather_rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """x[counts[rank], n] of each rank -> [sum of counts, n], one below the other"""
        ...

    def reduce_scatter(self, x: Tensor, counts: Sequence[int], place: int) -> Tensor:
        """x[sum of counts, n] of every rank, added up: rows of `place` -> [counts[place], n]"""
        ...

    def combine_pairs(
        self,
        x: Tensor,
        weights: Tensor | None,
        places: Tensor,
        pairs: SharedPairs,
        own: slice | None = None,
    ) -> Tensor:
        """x[P, sums * n]: what this rank has of pairs of a token and one of its experts, in the
        rows that places[T, top] names (negative: none) -> each token's sum over its experts, in
        their order, times weights[T, top] (None: ones): [T, n], or of the tokens `own`."""
        ...

    def dispatch(self, x: Tensor, spread: ExpertSpread) -> Tensor:
        """x[T, n] of this rank's engine, of which it sends a part -> [tokens of all engines, n]:
        those that have an expert at this rank; other rows hold anything"""
        ...

    def collect(self, y: Tensor, spread: ExpertSpread) -> Tensor:
        """y[tokens of all engines, n], what this rank made of those that it got -> [T, n]: of each
        token of this engine the sum of what its ranks made, in their order"""
        ...

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        """The least of each number that any rank has"""
        ...

    def divide(self, parts: Sequence[Sequence[int]]) -> Group:
        """The group of that part which this rank is in. Of the group of all ranks only; `parts`:
        the same on all of them, and each is in one."""
        ...

    def connect(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Pipe]:
        """A pipe for each (sender, receiver); those of this rank. Of the group of all ranks only;
        `pairs`: the same on all of them."""
        ...


class SingleRank:
    """The only rank of its group."""

    rank, size = 0, 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        return x

    def gather_rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        return x

    def reduce_scatter(self, x: Tensor, counts: Sequence[int], place: int) -> Tensor:
        return x.split(list(counts))[place]

    def combine_pairs(
        self,
        x: Tensor,
        weights: Tensor | None,
        places: Tensor,
        pairs: SharedPairs,
        own: slice | None = None,
    ) -> Tensor:
        return combine_gathered([spread_pairs(x, places)], weights, pairs, own)

    def dispatch(self, x: Tensor, spread: ExpertSpread) -> Tensor:
        return x

    def collect(self, y: Tensor, spread: ExpertSpread) -> Tensor:
        return y

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def divide(self, parts: Sequence[Sequence[int]]) -> Group:
        return self

    def connect(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Pipe]:
        return {}


SINGLE_RANK = SingleRank()


class AbsentRank(SingleRank):
    """One of several, without the others: it is asked for its share of things, and computes
    nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def divide(self, parts: Sequence[Sequence[int]]) -> Group:
        part = next(part for part in parts if self.rank in part)
        return AbsentRank(part.index(self.rank), len(part))

    def connect(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Pipe]:
        return {pair: AbsentPipe() for pair in pairs if self.rank in pair}


class AbsentPipe:
    """To or from an absent rank: nothing is computed."""

    def send(self, x: Tensor) -> None:
        raise RankLost("the other rank is absent")

    def receive(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        raise RankLost("the other rank is absent")


class TorchGroup:
    """By a backend of torch.distributed (gloo on CPUs), of which a process may have several: the
    default group of the process is left to the program whose engine this is."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        """Collective: returns when all who meet in `store` have come."""
        self._backend: Any = dist.ProcessGroupGloo(store, rank, size, LONGEST_WAIT)
        self._store = store
        self._divisions = 0
        self.rank, self.size = rank, size

    def divide(self, parts: Sequence[Sequence[int]]) -> Group:
        self._divisions += 1
        for number, part in enumerate(parts):
            if self.rank in part:
                place = dist.PrefixStore(f"{self._divisions}.{number}", self._store)
                return TorchGroup(place, list(part).index(self.rank), len(part))
        return self

    def connect(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Pipe]:
        return {pair: TorchPipe(self._backend, *pair) for pair in pairs if self.rank in pair}

    def sum(self, x: Tensor) -> Tensor:
        self._together(self._backend.allreduce, [x])
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """gloo wants equal shapes: narrower ones are filled up."""
        widest = max(widths)
        mine = x.new_zeros(x.shape[0], widest)
        mine[:, : x.shape[1]] = x
        parts = [torch.empty_like(mine) for _ in widths]
        self._together(self._backend.allgather, [parts], [mine])
        return torch.cat([part[:, :n] for part, n in zip(parts, widths, strict=True)], 1)

    def gather_rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """As in `gather`"""
        mine = x.new_zeros(max(counts), x.shape[1])
        mine[: len(x)] = x
        parts = [torch.empty_like(mine) for _ in counts]
        self._together(self._backend.allgather, [parts], [mine])
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    def reduce_scatter(self, x: Tensor, counts: Sequence[int], place: int) -> Tensor:
        return self.sum(x).split(list(counts))[place]

    def combine_pairs(
        self,
        x: Tensor,
        weights: Tensor | None,
        places: Tensor,
        pairs: SharedPairs,
        own: slice | None = None,
    ) -> Tensor:
        rows, width = places.numel(), x.shape[1] // pairs.sums[self.rank % len(pairs.sums)]
        widths = [width * sums for sums in pairs.sums] * (self.size // len(pairs.sums))
        whole = self.gather(spread_pairs(x, places).view(rows, -1), widths)
        parts = [part.unflatten(0, places.shape) for part in whole.split(widths, 1)]
        return combine_gathered(parts, weights, pairs, own)

    def dispatch(self, x: Tensor, spread: ExpertSpread) -> Tensor:
        return dispatch_rows(x, spread, self.rank, self.size, self._exchange)

    def collect(self, y: Tensor, spread: ExpertSpread) -> Tensor:
        return collect_rows(y, spread, self.rank, self.size, self._exchange)

    def _exchange(self, rows: list[Tensor], counts: list[int]) -> list[Tensor]:
        sent = torch.cat(rows)
        came = sent.new_empty(sum(counts), sent.shape[1])
        sizes = [len(one) for one in rows]
        self._together(self._backend.alltoall_base, came, sent, counts, sizes)
        return list(came.split(counts))

    def minimum(self, numbers: Sequence[int]) -> list[int]:
        found = torch.tensor(numbers, dtype=torch.int64)
        self._together(self._backend.allreduce, [found], dist.ReduceOp.MIN)
        return found.tolist()

    def _together(self, collective: Callable[..., Any], *operands: Any) -> None:
        try:
            collective(*operands).wait()
        except RuntimeError as error:
            raise RankLost(f"other ranks do not answer any more ({say(error)})") from error


class TorchPipe:
    """By a backend of torch.distributed"""

    def __init__(self, backend: Any, sender: int, receiver: int) -> None:
        self._backend = backend
        self._sender, self._receiver = sender, receiver
        self._under_way: deque[tuple[Any, Tensor]] = deque()
        """gloo hands nothing over before it is asked for"""

    def send(self, x: Tensor) -> None:
        copy = x.clone(memory_format=torch.contiguous_format)
        try:
            self._under_way.append((self._backend.send([copy], self._receiver, 0), copy))
            if len(self._under_way) > MESSAGES_AHEAD:
                self._under_way.popleft()[0].wait()
        except RuntimeError as error:
            raise RankLost(f"other ranks do not answer any more ({say(error)})") from error

    def receive(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        found = torch.empty(rows, columns, dtype=dtype)
        try:
            self._backend.recv([found], self._sender, 0).wait()
        except RuntimeError as error:
            raise RankLost(f"other ranks do not answer any more ({say(error)})") from error
        return found


def join_by_gloo(rendezvous: Rendezvous) -> TorchGroup:
    """Collective: returns when all ranks have come. Raises CannotStart."""
    require_loopback()
    return TorchGroup(
        open_store(rendezvous.meeting, rendezvous.size), rendezvous.rank, rendezvous.size
    )


def open_store(file: str, ranks: int) -> dist.Store:
    """Where this many ranks find each other, in a file that all of them can open now."""
    store = dist.FileStore(file, ranks)
    # When it ends it writes to its file once more, and `file` may be a number that another file has
    # by then: so it never ends. It holds a few words.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
    return store


def require_loopback() -> None:
    """Raises CannotStart where processes cannot reach each other on this machine."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_SECONDS).close()
    except OSError as error:
        raise CannotStart(
            f"--tp-size: the ranks talk over the loopback interface, and 127.0.0.1 cannot be "
            f"reached ({error.strerror or error}); `ip link set lo up`, or leave the flag out"
        ) from None
