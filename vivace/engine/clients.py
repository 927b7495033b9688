"""Who has got how much: the shares of clients (API keys) that want something at the same time.

A virtual token counter per client (Sheng et al. 2024, "Fairness in Serving Large Language Models"):
whoever has got least is next. Who comes back starts level with the others, neither with a claim to
what it did not want nor rid of what it has taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from vivace.engine.preemption import retraction_order
from vivace.engine.sequence import Sequence, State


class Clients:
    """Counts tokens and rows of clients with live requests. With one client it changes nothing."""

    def __init__(self, rows: int, pages: int, page_size: int) -> None:
        self._rows = rows
        self._pages = pages
        self._page_size = page_size
        self._live: Counter[int] = Counter()
        """live requests"""
        self._running: Counter[int] = Counter()
        """rows"""
        self._served: Counter[int] = Counter()
        """tokens computed; of clients that left, while they had more than others have now"""

    @property
    def several(self) -> bool:
        return len(self._live) > 1

    @property
    def only(self) -> int:
        """The client that has live requests, when it is one."""
        return next(iter(self._live), 0)

    def came(self, client: int) -> None:
        """A request of it lives."""
        if client not in self._live:
            level = min((self._served[other] for other in self._live), default=0)
            self._served[client] = max(self._served[client], level)
        self._live[client] += 1

    def went(self, client: int) -> None:
        """A request of it is over."""
        self._live[client] -= 1
        if not self._live[client]:
            del self._live[client]
        if not self._live:
            self._served.clear()

    def started(self, client: int) -> None:
        """A sequence of it got a row."""
        self._running[client] += 1

    def stopped(self, client: int) -> None:
        self._running[client] -= 1

    def rows(self, client: int) -> int:
        """Rows it holds."""
        return self._running[client]

    def charge(self, client: int, tokens: int) -> None:
        self._served[client] += tokens

    def charge_each(self, sequences: list[Sequence]) -> None:
        """A token for each sequence."""
        self._served.update(sequence.client for sequence in sequences)

    def in_turn(
        self, filling: list[Sequence], waiting: Callable[[int], list[Sequence]]
    ) -> Iterator[Sequence]:
        """Whose prompt is next: by importance, then rows, then tokens. Charge while you iterate.

        `waiting`: the queue of a client. Its own prompts follow each other as without others.
        """
        queues = {
            client: deque([s for s in filling if s.client == client] + waiting(client))
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
        part = self._rows // len(self._live)
        sated = head.state is State.WAITING and self._running[client] >= part
        rows = self._running[client]
        return (-head.importance, sated, self._served[client], rows, head.ticket)

    def displaced(self, head: Sequence, running: list[Sequence]) -> list[Sequence]:
        """Who may have to make place for `head`, the first to go first: of clients that still hold
        as much as the client of `head` when they have gone and it has come."""
        holdings = {client: Holding(self._rows, self._pages) for client in self._live}
        for sequence in running:
            holdings[sequence.client].add(1, self._pages_of(sequence))
        level = holdings.pop(head.client)
        level.add(1, -(-len(head.tokens) // self._page_size))
        victims: list[Sequence] = []
        for sequence in retraction_order(running):
            holding = holdings.get(sequence.client)
            if holding is None or sequence.importance > head.importance:
                continue
            pages = self._pages_of(sequence)
            holding.add(-1, -pages)
            if holding.part >= level.part:
                victims.append(sequence)
            else:
                holding.add(1, pages)
        return victims

    def _pages_of(self, sequence: Sequence) -> int:
        assert sequence.lease is not None
        return len(sequence.lease.pages)


class Holding:
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
    def part(self) -> float:
        """Of rows or of pages, whichever is more."""
        return max(self._rows / self._all_rows, self._pages / self._all_pages)
