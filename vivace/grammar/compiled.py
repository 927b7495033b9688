"""Compiled grammars by content: those of living requests, and the last ones of others."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass

from vivace.grammar.backend import GrammarMatcher, GrammarUnavailable
from vivace.protocol.constraints import Constraint

KEPT = 64
"""that nobody uses and somebody may ask for again"""
BYTES = 600
"""that an automaton takes for each character of its constraint, at most by what was measured: 360
of a long constant, 570 of tags with a hundred of them (usual schemas: 30 to 90). No library tells,
and what a process grows by differs among ranks."""
KEPT_CHARACTERS = (256 << 20) // BYTES
"""of the constraints of these together, but for the last one"""
LIVING_BYTES = 1 << 30
"""of automata that living requests need"""

NO_MEMORY = (
    "the constraints of other requests leave no memory for one of its length now: try again later"
)
Key = tuple[str, str]
Compiled = Future[GrammarMatcher]


@dataclass
class HeldGrammar:
    """Of requests that live, however many others there are: they join rows, and join again, where
    nobody can wait for it."""

    compiled: Compiled
    requests: int = 0


class CompiledGrammars:
    """Futures: who finds one that is not done has it compiled. Any thread calls everything."""

    def __init__(self, room: int = LIVING_BYTES) -> None:
        """`room`: bytes of what living requests need"""
        self._room, self._living = room // BYTES, 0
        """characters"""
        self._lock = threading.RLock()
        self._held: dict[Key, HeldGrammar] = {}
        self._kept: OrderedDict[Key, Compiled] = OrderedDict()
        """the least recently used first"""
        self._characters = 0
        self._gone: deque[tuple[Key, HeldGrammar]] = deque()
        """what requests held that have ended, in whatever thread that was"""

    def find(self, constraint: Constraint) -> Compiled:
        """What was compiled, or is to be."""
        with self._lock:
            self.let_go()
            key = content_key(constraint)
            if key in self._held:
                return self._held[key].compiled
            found = self._take(key) or Compiled()
            self._keep(key, found)
            return found

    def hold(self, constraint: Constraint) -> Compiled:
        """The same; it stays as long as this object does. Raises GrammarUnavailable where those of
        other requests leave no room."""
        with self._lock:
            self.let_go()
            key = content_key(constraint)
            if key not in self._held:
                if self._living and self._living + len(key[1]) > self._room:
                    raise GrammarUnavailable(NO_MEMORY)
                self._held[key] = HeldGrammar(self._take(key) or Compiled())
                self._living += len(key[1])
            held = self._held[key]
            found = held.compiled
            held.requests += 1
        weakref.finalize(constraint, self._gone.append, (key, held)).atexit = False
        return found

    def forget(self, constraint: Constraint) -> None:
        """Who comes next has it compiled anew; those that live have what they had."""
        with self._lock:
            key = content_key(constraint)
            self._held.pop(key, None)
            self._take(key)

    def replace(self, constraint: Constraint, matcher: GrammarMatcher) -> None:
        """Who comes next begins with this."""
        found, key = Compiled(), content_key(constraint)
        found.set_result(matcher)
        with self._lock:
            if key in self._held:
                self._held[key].compiled = found
            else:
                self._take(key)
                self._keep(key, found)

    def let_go(self) -> None:
        """What nobody waits for any more need not be compiled."""
        with self._lock:
            while self._gone:
                key, held = self._gone.popleft()
                held.requests -= 1
                if held.requests:
                    continue
                self._living -= len(key[1])
                if self._held.get(key) is held:
                    del self._held[key]
                    if not held.compiled.cancel():
                        self._keep(key, held.compiled)

    def _keep(self, key: Key, compiled: Compiled) -> None:
        self._kept[key] = compiled
        self._characters += len(key[1])
        while len(self._kept) > KEPT or (
            self._characters > KEPT_CHARACTERS and len(self._kept) > 1
        ):
            self._take(next(iter(self._kept)))

    def _take(self, key: Key) -> Compiled | None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._characters -= len(key[1])
        return found


def content_key(constraint: Constraint) -> Key:
    return constraint.kind, constraint.text
