"""Why an answer cannot go on, in words that say what its client may change."""

from __future__ import annotations

import re

from vivace.grammar.backend import LIBRARY_FAILED
from vivace.grammar.joint_matcher import STUCK

MAX_REASON = 200
REMEDIES = (
    (
        re.compile(r"Current row has|Too many items"),
        "it has too many ways to go on at one place: make its rules left-recursive (`list: list "
        "item`), its expressions longer, and drop alternatives that begin alike",
    ),
    (
        re.compile(r"too many expressions constructed"),
        "it takes too many expressions: shorten its constants (const, enum, texts of tags and "
        "grammars) to 100,000 characters together, and repeat less ({0,N}, maxLength)",
    ),
    (
        re.compile(r"too many (states|expressions)|fuel"),
        "its expressions take too many states: repeat less ({0,N}, maxLength) of what may be told "
        "apart only far behind",
    ),
    (re.compile(re.escape(STUCK)), "exclude that end from what the grammar of the tool allows"),
)
"""what the library says of its limits -> what to change"""
NO_ROOM = (
    "cannot be obeyed any further: too many answers have come to a limit together, and there is no "
    "room for an automaton of its own; try again"
)


def explain_stuck(error: str) -> tuple[int, str]:
    """Of a matcher -> status and what its client is told. A failure of the library is none of the
    client's: it was compiled."""
    if error.startswith(LIBRARY_FAILED):
        return 500, f"cannot be obeyed any further: {error}"
    return 400, f"cannot be obeyed any further {explain_limit(error)}"


def explain_limit(error: str) -> str:
    """With what to change."""
    told = (remedy for said, remedy in REMEDIES if said.search(error))
    reason = " ".join(error.split())[:MAX_REASON]
    return f"({reason}): {next(told, 'write it in other words')}"
