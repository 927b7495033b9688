"""Matchers behind long answers that nobody computes now: a row that joins again goes on with its
own instead of accepting all of its tokens once more, which takes longer than a step."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from vivace.grammar.backend import GrammarMatcher
from vivace.grammar.replay import SLICE
from vivace.protocol.constraints import Constraint

MOST_TOKENS = 1 << 18
"""of all answers together: matchers remember each of them"""
MOST_MATCHERS = 16
"""each has an automaton of its own, up to tens of megabytes, and the text of its constraint"""

Place = tuple[str, str, int, bytes]
"""a constraint, and how many tokens of which answer"""


class MatcherCache:
    """By constraint and tokens of the answer; the last ones that were kept. Any thread calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Place, GrammarMatcher] = OrderedDict()
        self._tokens = 0

    def keep(self, constraint: Constraint, tokens: Sequence[int], matcher: GrammarMatcher) -> None:
        """Nobody else goes on with it. Of short answers nothing is kept, nor of those that are
        over."""
        if not SLICE < len(tokens) <= MOST_TOKENS or matcher.ended or matcher.error:
            return
        place = find_place(constraint, tokens)
        with self._lock:
            self._remove(place)
            self._kept[place] = matcher
            self._tokens += len(tokens)
            while self._tokens > MOST_TOKENS or len(self._kept) > MOST_MATCHERS:
                self._remove(next(iter(self._kept)))

    def take(self, constraint: Constraint, tokens: Sequence[int]) -> GrammarMatcher | None:
        """For one answer, which alone goes on with it."""
        if len(tokens) <= SLICE or not self._kept:
            return None
        place = find_place(constraint, tokens)
        with self._lock:
            return self._remove(place)

    def _remove(self, place: Place) -> GrammarMatcher | None:
        found = self._kept.pop(place, None)
        if found is not None:
            self._tokens -= place[2]
        return found


def find_place(constraint: Constraint, tokens: Sequence[int]) -> Place:
    digest = blake2b(array("i", tokens).tobytes(), digest_size=16).digest()
    return constraint.kind, constraint.text, len(tokens), digest
