"""Grammars that never end: each text of a rule would have to contain another one of it, or what
takes its end, too."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from vivace.grammar.backend import GrammarError

MAX_WORK = 200_000
"""items of rules that are looked at"""
START = "start"
LARK_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|//[^\n]*|\#[^\n]*)
    |(?P<line>\n)
    |(?P<skipped>%(?:ignore|import|declare|override|extend)\b[^\n]*)
    |(?P<options>%llguidance\s*)
    |(?P<value>%(?:json|regex)\s*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\]|\\.)+/[imslux]*|<[^>\n]*>|@[\w-]+)
    |(?P<alias>->[ \t]*[?!]?[A-Za-z_][\w-]*)
    |(?P<name>[?!]?[A-Za-z_][\w-]*)
    |(?P<repeat>[*+?]|\{[\d\s,]*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<mark>->|\.\.|[()\[\]|:,=.&~-]|\d+)""",
    re.VERBOSE,
)
_REFERENCES = re.compile(
    r"""(?://|\#)[^\n]*|"(?:[^"\\\n]|\\.)*+"?|/(?:[^/\\]|\\.)++/?|<[^<>\s]+>
    |(?P<value>%(?:json|regex|llguidance)\s*)|(?P<reference>@[\w-]+)""",
    re.VERBOSE,
)
"""what may have an @ in it that refers to nothing; and what does"""
_NOTHING_NEEDED = re.compile(r"[*?]|\{\s*(?:0\s*)?(?:,.*)?\}|~\s*0.*")
"""repeats that may be none; of `{0,3}`, `{,3}`, not of `{3,}`"""
_ALL = (
    r"\[(?:\\s\\S|\\S\\s|\\d\\D|\\D\\d|\\w\\W|\\W\\w)\]|\((?:\?:)?(?:\.\|\\n|\\n\|\.)\)|\(\?s:\.\)"
)
_MANY = r"[*+]|\{\d+,\}"
_TAKES_ALL = re.compile(
    rf"/(?:[^|\\]|\\.)*?(?:(?:{_ALL})(?:{_MANY})|\(\?s:\.[*+]\))/[imux]*"
    rf"|/(?:[^|\\]|\\.)*?(?:{_ALL}|\.)(?:{_MANY})/[imux]*s[imsux]*"
    rf"|/\(\?[imux]*s[imsux]*\)(?:[^|\\]|\\.)*?\.(?:{_MANY})/[imux]*"
    rf"|/(?:(?:{_ALL})/[imux]*|\./[imux]*s[imsux]*)(?:{_MANY})",
    re.DOTALL,
)
"""an expression that goes on with whatever comes"""
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_ATTRIBUTES = rf'(?:{_STRING.pattern}|[^"\]\n])*'
_ENDS_ITSELF = re.compile(r"\s*(?:stop|suffix|lazy|max_tokens)\b")
"""an attribute of a rule by which whatever it takes has an end"""
_HEAD = re.compile(
    rf"^[?!]?([A-Za-z_][\w-]*)(?:\[({_ATTRIBUTES})\])?(?:\.-?\d+)?[ \t]*:", re.MULTILINE
)


class UnreadGrammar(Exception):
    """Syntax that is not known here, or too much of it: the library judges."""


@dataclass
class ChoiceOfItems:
    """`|` of sequences; a group of a rule, or all of it. An item is a rule's name or a group."""

    sequences: list[list[str | ChoiceOfItems]]

    def names(self) -> Iterator[str]:
        for sequence in self.sequences:
            for item in sequence:
                yield from [item] if isinstance(item, str) else item.names()


def check_ends(lark: str) -> None:
    """Raises GrammarError for a grammar without a finite text, and for one that refers to others:
    there are none but those that this program has made."""
    if reference := _find_reference(lark):
        raise GrammarError(
            f"{reference:.60} refers to another grammar, and there is none; write its rules here"
        )
    if has_no_finite_text(lark):
        raise GrammarError(
            "never ends: every text of its first rule has another one in it; give a rule on the "
            "way an alternative without"
        )


def check_input_ends(lark: str) -> None:
    """Raises GrammarError for a grammar behind which nothing can come, since a terminal takes that,
    too: a lexer takes as much as it can, and does not go back."""
    if has_no_finite_text(lark, lambda text: bool(_TAKES_ALL.fullmatch(text))):
        raise GrammarError(
            "never ends: each text of it has a terminal that takes whatever comes, as /[\\s\\S]+/, "
            "and so the end of the input, too; use a regex, or write what it may not take"
        )


def has_no_finite_text(lark: str, is_endless: Callable[[str], bool] = lambda _: False) -> bool:
    """Of a grammar in Lark's syntax. Where that is not clear: False. `is_endless`: of a text or an
    expression."""
    try:
        return START in _EndSearch(_read_rules(lark, is_endless)).without_end()
    except (UnreadGrammar, RecursionError):
        return False


def _find_reference(lark: str) -> str:
    """To another grammar, wherever it stands, in rules that are not read otherwise, too."""
    place = 0
    while found := _REFERENCES.search(lark, place):
        place = found.end()
        if found["reference"]:
            return found["reference"]
        if found["value"]:
            try:
                place = _skip_value(lark, place)
            except UnreadGrammar:
                break  # the library refuses it
    return ""


class _EndSearch:
    """Which rules have a finite text: the least set that follows from itself."""

    def __init__(self, rules: dict[str, ChoiceOfItems]) -> None:
        self._rules = rules
        self._finite: set[str] = set()
        self._work = 0

    def without_end(self) -> set[str]:
        users: dict[str, set[str]] = {}
        for name, rule in self._rules.items():
            for used in rule.names():
                users.setdefault(used, set()).add(name)
        asked = deque(self._rules)
        while asked:
            name = asked.popleft()
            if name not in self._finite and self._ends(self._rules[name]):
                self._finite.add(name)
                asked += users.get(name, ())
        return set(self._rules) - self._finite

    def _ends(self, item: str | ChoiceOfItems) -> bool:
        self._work += 1
        if self._work > MAX_WORK:
            raise UnreadGrammar
        if isinstance(item, str):
            return item in self._finite or item not in self._rules
        return any(all(map(self._ends, sequence)) for sequence in item.sequences)


def _read_rules(lark: str, is_endless: Callable[[str], bool]) -> dict[str, ChoiceOfItems]:
    """What they refer to, terminals among them: of these what is not read ends."""
    heads = list(_HEAD.finditer(lark))
    ends = [*[head.start() for head in heads], len(lark)][1:]
    rules: dict[str, ChoiceOfItems] = {}
    for head, end in zip(heads, ends, strict=True):
        if head[1] in rules:
            raise UnreadGrammar
        attributes = _STRING.sub("", head[2] or "").split(",")
        if any(map(_ENDS_ITSELF.match, attributes)):
            rules[head[1]] = ChoiceOfItems([[]])
            continue
        tokens, is_terminal = _tokens(lark, head.end(), end), head[1].isupper()
        try:
            rules[head[1]] = _read_choice(tokens, is_endless, is_terminal)
        except UnreadGrammar:
            if not is_terminal:
                raise
    return rules


def _read_choice(
    tokens: Iterator[tuple[str, str]], is_endless: Callable[[str], bool], is_terminal: bool
) -> ChoiceOfItems:
    """The body of a rule; a line that is not continued by `|` ends it. Where a terminal may have
    something, its lexer goes on with that."""
    whole = ChoiceOfItems([[]])
    open_groups = [(whole, "")]
    for (_, before), (kind, text) in pairwise(chain([("", "")], tokens)):
        choice, closing = open_groups[-1]
        sequence = choice.sequences[-1]
        if kind == "name":
            sequence.append(text)
        elif kind == "repeat" and is_terminal:
            if is_endless(before + text):
                sequence[-1] = ChoiceOfItems([])
        elif kind == "repeat" and sequence and _NOTHING_NEEDED.fullmatch(text):
            sequence[-1] = ChoiceOfItems([[]])
        elif kind in ("text", "value"):
            sequence.append(ChoiceOfItems([] if is_endless(text) else [[]]))
        elif text == "|":
            choice.sequences.append([])
        elif text in ("(", "["):
            group = ChoiceOfItems([[]])
            sequence.append(group)
            open_groups.append((group, ")" if text == "(" else "]"))
        elif text and text == closing:
            open_groups.pop()
            if text == "]" and not is_terminal:
                open_groups[-1][0].sequences[-1][-1] = ChoiceOfItems([[]])
        elif kind == "mark":
            raise UnreadGrammar
    if len(open_groups) > 1:
        raise UnreadGrammar
    return whole


def _tokens(lark: str, place: int, end: int) -> Iterator[tuple[str, str]]:
    for kind, text, behind in lark_tokens(lark, place, end):
        if kind == "name" and text.isupper() and lark[behind : behind + 1] == ":":
            return  # expressions follow
        if kind not in ("space", "line", "skipped", "options", "alias"):
            yield kind, text


def lark_tokens(lark: str, place: int, end: int) -> Iterator[tuple[str, str, int]]:
    """Each kind and text, and the place behind it. Raises UnreadGrammar."""
    while place < end:
        found = LARK_TOKEN.match(lark, place, end)
        if found is None or found.lastgroup is None:
            raise UnreadGrammar
        place = found.end()
        if found.lastgroup in ("options", "value"):
            place = _skip_value(lark, place)
        yield found.lastgroup, found[0], place


def _skip_value(lark: str, place: int) -> int:
    """Behind the JSON that begins there."""
    try:
        return json.JSONDecoder().raw_decode(lark, place)[1]
    except (ValueError, RecursionError):
        raise UnreadGrammar from None
