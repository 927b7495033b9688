"""Grammars in Lark's syntax whose rules do not refer back to themselves: each is one terminal.

A lexer takes as much as it can for a terminal, and does not go back. So where the last one of a
grammar may have anything in it (`/[\\s\\S]+/`), it takes what is to end the text, too. What is one
terminal as a whole can be ended where that comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from vivace.errors import is_panic
from vivace.grammar.endless_rules import START, UnreadGrammar, lark_tokens

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""The library looks ahead as far as text is forced, which never ends behind `/a+/ "a"`: what is
repeated takes every a, so that one must follow for ever. For grammars and expressions in them."""
MOST_CHARACTERS = 4096
"""of a grammar: as an expression a large one may have more states than are followed"""
_IMPORT = re.compile(r"%import\s+common\.(\w+)(?:\s*->\s*(\w+))?\s*$")
EMPTY = '""'
LarkToken = tuple[str, str]
"""kind and text"""


def flat_terminals(lark: str, prefix: str) -> list[str] | None:
    """Definitions of terminals, the whole grammar's first, whose name is `prefix` and 0; None where
    it has in it what expressions have not, is large, or is no grammar: the library says why."""
    from llguidance import LLMatcher

    if len(lark) > MOST_CHARACTERS:
        return None
    try:
        rules = _read_rules(lark.removeprefix(NO_FORCING))  # options of others are not read
        uses = {
            name: {text for kind, text in body if kind == "name"} for name, body in rules.items()
        }
        TopologicalSorter(uses).prepare()
    except (UnreadGrammar, CycleError):
        return None
    if START not in rules or not set().union(*uses.values()) <= set(rules):
        return None
    known = {
        name: f"{prefix}{number}"
        for number, name in enumerate([START, *(one for one in rules if one != START)])
    }
    lines = [_definition(name, rules[name], known) for name in known]
    flat = "\n".join([f"start: {known[START]}", *lines])
    both = map(LLMatcher.grammar_from_lark, (lark, flat))
    return None if any(map(validate_grammar, both)) else lines


def validate_grammar(grammar: str) -> str:
    """What the library says is wrong with it; nothing where it fails at it."""
    from llguidance import LLMatcher

    try:
        return LLMatcher.validate_grammar(grammar, None)
    except BaseException as error:
        if not is_panic(error):
            raise
        return ""


def _definition(name: str, body: list[LarkToken], known: dict[str, str]) -> str:
    if body and body[0][0] == "import":
        return f"%import common.{body[0][1]} -> {known[name]}"
    words = [known[text] if kind == "name" else text for kind, text in body]
    return f"{known[name]}: {' '.join(words) or EMPTY}"


def _read_rules(lark: str) -> dict[str, list[LarkToken]]:
    """What each name stands for; `import`: something of Lark's own. Raises UnreadGrammar."""
    rules: dict[str, list[LarkToken]] = {}
    body: list[LarkToken] | None = None
    for (kind, text), (_, behind) in pairwise([*_tokens(lark), ("", "")]):
        if kind == "skipped":
            found = _IMPORT.match(text)
            if found is None:
                raise UnreadGrammar
            _begin(rules, found[2] or found[1]).append(("import", found[1]))
        elif kind == "name" and behind == ":":
            body = _begin(rules, text.lstrip("?!"))
        elif body is None:
            raise UnreadGrammar
        elif text != ":":
            body.append((kind, text))
    return rules


def _begin(rules: dict[str, list[LarkToken]], name: str) -> list[LarkToken]:
    if name in rules:
        raise UnreadGrammar
    rules[name] = []
    return rules[name]


def _tokens(lark: str) -> Iterator[LarkToken]:
    """But for aliases and what separates. Raises UnreadGrammar for what no expression has."""
    for kind, text, _ in lark_tokens(lark, 0, len(lark)):
        if kind in ("options", "value") or (kind == "text" and text[0] in "<@"):
            raise UnreadGrammar
        if kind not in ("space", "line", "alias"):
            yield kind, text
