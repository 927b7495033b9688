"""An answer that goes on: its grammar accepts what is there, and others have the interpreter."""

from __future__ import annotations

import time
from collections.abc import Sequence

from vivace.grammar.backend import GrammarMatcher

SLICE = 256
"""tokens that are accepted at once: a third of a millisecond, in which libraries keep the
interpreter for themselves"""
PAUSE = 0.0002
"""seconds behind each slice: less, and nobody else wakes in time to take the interpreter"""


def replay(matcher: GrammarMatcher, tokens: Sequence[int]) -> int:
    """As `accept`, beside threads that must not notice."""
    done = 0
    while done < len(tokens):
        part = list(tokens[done : done + SLICE])
        count = matcher.accept(part)
        done += count
        if count < len(part):
            break
        if done < len(tokens):
            time.sleep(PAUSE)
    return done


def follow(matcher: GrammarMatcher, tokens: Sequence[int]) -> GrammarMatcher | None:
    """It, at its start, behind these tokens; where others have used up a limit that it shares,
    which it need not say, one that has nothing in common with them. None: they do not obey."""
    if replay(matcher, tokens) == len(tokens):
        return matcher
    other = matcher.fresh()
    return other if other is not None and replay(other, tokens) == len(tokens) else None
