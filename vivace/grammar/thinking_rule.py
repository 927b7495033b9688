"""What an answer obeys in which thinking comes first: a constraint around that of the answer."""

from __future__ import annotations

import msgspec

from vivace.protocol.constraints import Constraint

THINKING = "thinking"
"""the kind of such a constraint, which no request names"""


class ThinkingRule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Thinking stands between `begin` and `end`, an answer that begins `inside` has its rest.

    It may have any tokens but those of `avoided`, at most `budget` of them: then comes `end`, which
    may be several tokens. Behind it, or where nothing was thought, `answer` is obeyed.
    """

    begin: str
    end: str
    inside: bool = False
    budget: int | None = None
    avoided: tuple[str, ...] = ()
    answer: Constraint | None = None


def thinking_constraint(rule: ThinkingRule, field: str) -> Constraint:
    """`field`: of the request, for errors."""
    return Constraint(kind=THINKING, text=msgspec.json.encode(rule).decode(), field=field)


def read_thinking_rule(text: str) -> ThinkingRule:
    """Of the text of such a constraint."""
    return msgspec.json.decode(text, type=ThinkingRule)
