"""Who of the waiting runs next, who is dropped from a full queue, and who makes place."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Protocol

from vivace.engine.sequence import Sequence, State
from vivace.kv.leases import Leases
from vivace.kv.prefix_tree import TOKEN_BYTES
from vivace.registry import Registry

LPM_LIMIT = 128
"""above so many waiting sequences, matching them all costs more than it gains"""


class WaitingQueue:
    """A queue for each client; the limit holds for all of them together."""

    def __init__(self, order: Order, max_queued: int | None) -> None:
        self._order = order
        self._max_queued = max_queued
        self._queues: dict[int, list[Sequence]] = {}
        self._keys: dict[int, int] = {}
        """of all that wait -> the tokens that are known of each"""
        self.tokens = 0
        """of all of them"""
        self._unsorted: set[int] = set()
        self._stale: Counter[int] = Counter()
        """of each client: how many of its queue wait no more"""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in no order."""
        return chain.from_iterable(self._all().values())

    def full(self, free_rows: int) -> bool:
        """True when one more would be queued beyond the limit; who may run soon is not queued."""
        return self._max_queued is not None and len(self) >= self._max_queued + free_rows

    def add(self, sequence: Sequence) -> None:
        sequence.refresh_prefix()
        self._prune(sequence.client)
        self._queues.setdefault(sequence.client, []).append(sequence)
        self._unsorted.add(sequence.client)
        self._keys[sequence.key] = length = len(sequence.tokens)
        self.tokens += length

    def remove(self, sequences: Iterable[Sequence]) -> None:
        """Those of them that wait. Queues are rebuilt when somebody looks at them, so that many may
        go one by one."""
        for sequence in sequences:
            if sequence.key in self._keys:
                self.tokens -= self._keys.pop(sequence.key)
                self._stale[sequence.client] += 1

    def in_order(self, client: int) -> list[Sequence]:
        """All that wait of a client, next first."""
        self._prune(client)
        queue = self._queues.get(client, [])
        if client in self._unsorted or not self._order.stable:
            self._order.sort(queue)
            self._unsorted.discard(client)
        return queue

    def _all(self) -> dict[int, list[Sequence]]:
        for client in [*self._stale]:
            self._prune(client)
        return self._queues

    def _prune(self, client: int) -> None:
        """A new queue without those that wait no more, who mostly stand at its head; none stays
        empty."""
        gone = self._stale.pop(client, 0)
        if not gone:
            return
        queue = self._queues.pop(client)
        if any(one.key in self._keys for one in queue[:gone]):
            queue = [one for one in queue if one.key in self._keys]
        else:
            queue = queue[gone:]
        if queue:
            self._queues[client] = queue

    def lowest_priority(self, newcomer: Sequence) -> Sequence | None:
        """Who is dropped for a newcomer: the last to come of the lowest priority.

        Among equals, of whoever has most waiting, if that is more than the newcomer's client has.
        """
        last = min(self, key=lambda s: (s.priority, -s.seq_no), default=None)
        if last is None or last.priority < newcomer.priority:
            return last
        longest = max(self._all().values(), key=len)
        if len(longest) <= len(self._queues.get(newcomer.client, ())) + 1:
            return None
        last = min(longest, key=lambda s: (s.priority, -s.seq_no))
        return last if last.priority <= newcomer.priority else None


# --- who makes place ------------------------------------------------------------------------


def retraction_order(running: list[Sequence]) -> list[Sequence]:
    """Whom to retract first when pages run out.

    The lowest priority, then who has generated least (least work is repeated), then the longest
    prompt (most pages come free), then the latest.
    """
    return sorted(
        running,
        key=lambda s: (s.priority, s.num_output_tokens, -s.num_prompt_tokens, -s.seq_no),
    )


def preemptable(head: Sequence, running: list[Sequence], threshold: int) -> list[Sequence]:
    """Running sequences that `head` may displace, the first to go first."""
    return retraction_order([s for s in running if head.priority - s.priority > threshold])


# --- shares of clients ----------------------------------------------------------------------


class Clients:
    """Fair shares of clients (API keys): counts tokens and rows of those with live requests.

    A virtual token counter per client (Sheng et al. 2024, "Fairness in Serving Large Language
    Models"): whoever has got least is next. Who comes back starts level with the others, neither
    with a claim to what it did not want nor rid of what it has taken. One client alone is next.
    """

    def __init__(self, rows: int, pages: int, page_size: int) -> None:
        self._rows = rows
        self._pages = pages
        self._page_size = page_size
        self._live: Counter[int] = Counter()
        """live requests"""
        self._running: Counter[int] = Counter()
        """rows"""
        self._served: Counter[int] = Counter()
        """tokens computed; of clients that left, too, until nobody is there"""

    @property
    def several(self) -> bool:
        return len(self._live) > 1

    @property
    def only(self) -> int:
        """The client that has live requests, when it is one."""
        return next(iter(self._live), 0)

    def request_added(self, client: int) -> None:
        """A request of it lives."""
        if client not in self._live:
            level = min((self._served[other] for other in self._live), default=0)
            self._served[client] = max(self._served[client], level)
        self._live[client] += 1

    def request_ended(self, client: int) -> None:
        """A request of it is over."""
        self._live[client] -= 1
        if not self._live[client]:
            del self._live[client]
        if not self._live:
            self._served.clear()

    def row_taken(self, client: int) -> None:
        """A sequence of it got a row."""
        self._running[client] += 1

    def row_released(self, client: int) -> None:
        self._running[client] -= 1

    def rows(self, client: int) -> int:
        """Rows it holds."""
        return self._running[client]

    def charge(self, client: int, tokens: int) -> None:
        self._served[client] += tokens

    def charge_each(self, sequences: list[Sequence]) -> None:
        """A token for each sequence."""
        self._served.update(sequence.client for sequence in sequences)

    def fair_order(
        self, prefilling: list[Sequence], waiting: Callable[[int], list[Sequence]]
    ) -> Iterator[Sequence]:
        """Whose prompt is next: by priority, then rows, then tokens. Charge while you iterate.

        `waiting`: the queue of a client. Its own prompts follow each other as without others.
        """
        queues = {
            client: deque([s for s in prefilling if s.client == client] + waiting(client))
            for client in self._live
        }
        queues = {client: queue for client, queue in queues.items() if queue}
        while queues:
            client = min(queues, key=lambda client: self._rank(client, queues[client][0]))
            queue = queues[client]
            yield queue.popleft()
            if not queue:
                del queues[client]

    def heads(self, waiting: Callable[[int], list[Sequence]]) -> list[Sequence]:
        """The next newcomer of each client, next first."""
        heads = [queue[0] for client in self._live if (queue := waiting(client))]
        return sorted(heads, key=lambda head: self._rank(head.client, head))

    def _rank(self, client: int, head: Sequence) -> tuple[int, bool, int, int, int]:
        fair_rows = self._rows // len(self._live)
        has_share = head.state is State.WAITING and self._running[client] >= fair_rows
        rows = self._running[client]
        return (-head.priority, has_share, self._served[client], rows, head.seq_no)

    def preemptable(self, head: Sequence, running: list[Sequence]) -> list[Sequence]:
        """Who may have to make place for `head`, the first to go first: of clients that still hold
        as much as the client of `head` when they have gone and it has come."""
        usages = {client: ClientUsage(self._rows, self._pages) for client in self._live}
        for sequence in running:
            usages[sequence.client].add(1, self._page_count(sequence))
        level = usages.pop(head.client)
        level.add(1, -(-len(head.tokens) // self._page_size))
        victims: list[Sequence] = []
        for sequence in retraction_order(running):
            usage = usages.get(sequence.client)
            if usage is None or sequence.priority > head.priority:
                continue
            pages = self._page_count(sequence)
            usage.add(-1, -pages)
            if usage.share >= level.share:
                victims.append(sequence)
            else:
                usage.add(1, pages)
        return victims

    def _page_count(self, sequence: Sequence) -> int:
        assert sequence.lease is not None
        return len(sequence.lease.pages)


class ClientUsage:
    """Rows and pages of one client."""

    def __init__(self, rows: int, pages: int) -> None:
        self._all_rows = rows
        self._all_pages = pages
        self._rows = 0
        self._pages = 0

    def add(self, rows: int, pages: int) -> None:
        self._rows += rows
        self._pages += pages

    @property
    def share(self) -> float:
        """Of rows or of pages, whichever is more."""
        return max(self._rows / self._all_rows, self._pages / self._all_pages)


# --- who is next: one class per --schedule-policy -------------------------------------------


class Order(Protocol):
    """Sorts the waiting queue in place, next first. Constructed as `Order(leases, seed)`.

    `stable`: sequences that wait keep their order, so sorting again after an arrival is enough.
    """

    stable: bool

    def sort(self, waiting: list[Sequence]) -> None: ...


class OrderFactory(Protocol):
    def __call__(self, leases: Leases, seed: int) -> Order: ...


ORDERS: Registry[OrderFactory] = Registry(
    "schedule policy",
    {
        "fcfs": "vivace.engine.schedule_policy:Fcfs",
        "lpm": "vivace.engine.schedule_policy:Lpm",
        "dfs-weight": "vivace.engine.schedule_policy:DfsWeight",
        "lof": "vivace.engine.schedule_policy:Lof",
        "random": "vivace.engine.schedule_policy:Random",
        "priority": "vivace.engine.schedule_policy:Fcfs",
    },
)


def sort_by(waiting: list[Sequence], rank: Callable[[Sequence], int]) -> None:
    """By priority (all equal without priority scheduling), then by rank, then by arrival."""
    waiting.sort(key=lambda sequence: (-sequence.priority, rank(sequence), sequence.seq_no))


class Fcfs:
    """First come, first served."""

    stable = True

    def __init__(self, leases: Leases, seed: int) -> None:
        pass

    def sort(self, waiting: list[Sequence]) -> None:
        sort_by(waiting, lambda sequence: 0)


class Lof:
    """Longest max_new_tokens first."""

    stable = True

    def __init__(self, leases: Leases, seed: int) -> None:
        pass

    def sort(self, waiting: list[Sequence]) -> None:
        sort_by(waiting, lambda sequence: -sequence.request.sampling.max_new_tokens)


class Lpm:
    """Longest cached prefix first; by arrival when too many wait."""

    stable = False

    def __init__(self, leases: Leases, seed: int) -> None:
        self._leases = leases

    def sort(self, waiting: list[Sequence]) -> None:
        sort_by(waiting, self._rank if len(waiting) <= LPM_LIMIT else lambda sequence: 0)

    def _rank(self, sequence: Sequence) -> int:
        return -self._leases.measure(sequence.request.cache_key, sequence.prefix)


class DfsWeight:
    """Branch by branch of the prefix tree, the branch with most waiting sequences first.

    Sequences that share a longer prefix with more others run together, so their shared pages are
    used while they are there.
    """

    stable = False

    def __init__(self, leases: Leases, seed: int) -> None:
        self._stride = TOKEN_BYTES * leases.page_size
        self._leases = leases

    def sort(self, waiting: list[Sequence]) -> None:
        groups: dict[tuple[str, bytes], list[Sequence]] = {}
        for sequence in waiting:
            name = sequence.request.cache_key
            cached = self._leases.measure(name, sequence.prefix)
            groups.setdefault((name, sequence.prefix[: cached * self._stride]), []).append(sequence)
        weights = {branch: self._weight(branch, groups) for branch in groups}
        branches = sorted(groups, key=lambda branch: self._path(branch, weights))
        ranks = {s.key: rank for rank, branch in enumerate(branches) for s in groups[branch]}
        sort_by(waiting, lambda sequence: ranks[sequence.key])

    def _weight(
        self, branch: tuple[str, bytes], groups: dict[tuple[str, bytes], list[Sequence]]
    ) -> int:
        name, path = branch
        return sum(
            len(members)
            for (other, below), members in groups.items()
            if other == name and below.startswith(path)
        )

    def _path(
        self, branch: tuple[str, bytes], weights: dict[tuple[str, bytes], int]
    ) -> list[tuple[int, str, bytes]]:
        """Heavier subtrees sort first on every level on the way to the branch."""
        name, path = branch
        return [
            (-weight, other, above)
            for (other, above), weight in sorted(weights.items(), key=lambda item: len(item[0][1]))
            if other == name and path.startswith(above)
        ]


class Random:
    """A new random order at every look, reproducible from the server's seed."""

    stable = False

    def __init__(self, leases: Leases, seed: int) -> None:
        self._random = random.Random(seed)

    def sort(self, waiting: list[Sequence]) -> None:
        self._random.shuffle(waiting)
        waiting.sort(key=lambda sequence: -sequence.priority)
