"""A constraint as a request brings it -> text in llguidance's language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.endless_rules import check_ends
from vivace.grammar.flat_grammars import NO_FORCING, flat_terminals, validate_grammar
from vivace.grammar.json_schema import check_schema, decode_schema, json_grammar, read_schema
from vivace.grammar.schema_refusals import (
    MAX_REASON,
    MOST_TRIALS,
    MOST_TRIED_BYTES,
    explain_blamed,
    explain_expression,
)
from vivace.grammar.structural_tag import tag_grammars
from vivace.grammar.tag_forms import read_structural_tag, tag_schemas, tag_texts
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint

_OPTIONS = re.compile(r"^[ \t]*%llguidance\b.*$", re.MULTILINE)
_LARK = re.compile(
    r"^[^\S\n]*(?:%llguidance\b|[?!]?start(?:\[[^\]\n]*\]|\{[^}\n]*\}|\.-?\d+)?[^\S\n]*:(?!:=))",
    re.MULTILINE,
)
"""tells it from GBNF, which may have a rule `start ::=`"""
_GBNF = "::="
_GBNF_HEAD = re.compile(r"^[^\S\n]*([\w-]+)\s*::=", re.MULTILINE)
_GBNF_NAME = re.compile(r'("(?:[^"\\\n]|\\.)*+"?|\[(?:[^\]\\\n]|\\.)*+\]?|#[^\n]*)|[\w-]+')
"""of a rule; or what it may stand in, up to the end of its line where it has none"""
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
NO_START = "is no grammar: it has neither a rule start: (Lark) nor one root ::= (GBNF)"
_AT = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_EXCERPT = re.compile(r"\n +\d+ \| ")
"""of the grammar, behind what is wrong with it"""
_ESCAPED = re.compile(r"(?<!\\)\\(?:u([0-9a-fA-F]{4})|-)")


@dataclass(frozen=True)
class GrammarDialect:
    """What a translation depends on besides the constraint."""

    form: JsonFormat
    special_ids: Mapping[str, int]
    """texts that are tokens of their own -> these"""


def translate(constraint: Constraint, dialect: GrammarDialect) -> list[str]:
    """In llguidance's language: an answer obeys all of these. Raises GrammarError for what is no
    grammar."""
    if constraint.kind == STRUCTURAL_TAG:
        return list(_translate_tag(constraint.text, dialect))
    return [_TRANSLATIONS[constraint.kind](constraint.text, dialect)]


def explain(constraint: Constraint, reason: str) -> str:
    """What the library says of its translation -> what the client is told."""
    if constraint.kind == JSON_SCHEMA:
        told = explain_blamed([("", decode_schema(constraint.text))], reason)
        return told or explain_expression(reason)
    if constraint.kind == STRUCTURAL_TAG:
        return _explain_tag(read_structural_tag(constraint.text), reason)
    if constraint.kind == REGEX:
        return explain_expression(reason)
    return _explain_grammar(constraint.text, reason)


def _explain_tag(root: dict[str, Any], reason: str) -> str:
    """Expressions and grammars stand among rules of ours there, so each is tried alone."""
    if told := explain_blamed(tag_schemas(root), reason):
        return told
    for place, part in islice(tag_texts(root), MOST_TRIALS):
        if said := _refusal_alone(part):
            return f"{place}: {said}"
    said = _without_grammar(reason)
    return f"{place}: {said}" if (place := _refused_schema(tag_schemas(root))) else said


def _refusal_alone(part: Constraint) -> str:
    """Of an expression or a grammar; empty: it is none."""
    translate_part = _translate_regex if part.kind == REGEX else _translate_ebnf
    reason = validate_grammar(translate_part(part.text))
    return explain(part, reason) if reason else ""


def _refused_schema(schemas: Sequence[tuple[str, Any]]) -> str:
    """The place of the first one that is refused alone; empty: none of those that are tried."""
    left = MOST_TRIED_BYTES
    for place, schema in schemas[:MOST_TRIALS]:
        check_schema(schema, place)
        left -= len(grammar := json_grammar(schema, JsonFormat()))
        if left < 0:
            break
        if validate_grammar(grammar):
            return place
    return ""


def _without_grammar(reason: str) -> str:
    """What the library says, but for lines of the grammar that it shows."""
    said = _EXCERPT.split(reason, maxsplit=1)[0]
    return " ".join(_AT.sub("", said, count=1).split())[:MAX_REASON]


def _explain_grammar(text: str, reason: str) -> str:
    """With its place in `text`, and without the line that was put before that."""
    said = _EXCERPT.split(reason, maxsplit=1)[0]
    found = _AT.match(said)
    if found is None:
        return explain_expression(said)
    told = explain_expression(said[found.end() :])
    return f"line {int(found[1]) - 1}, column {found[2]}: {told}" if _LARK.search(text) else told


def _translate_regex(text: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(_escaping_something(text))


def _escaping_something(pattern: str) -> str:
    """It; the library would leave out a last backslash. Raises GrammarError."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise GrammarError("ends with a backslash that escapes nothing; write two of them for one")
    return pattern


def _translate_ebnf(text: str) -> str:
    from llguidance import LLMatcher

    lark = to_lark(text)
    check_ends(lark)
    return LLMatcher.grammar_from_lark(lark)


def to_lark(text: str) -> str:
    """Of a grammar in GBNF, or in Lark's syntax already. Raises GrammarError."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = _ESCAPED.sub(_written_out, text)
    is_lark = _LARK.search(text) is not None
    if not is_lark and _GBNF not in text:
        raise GrammarError(NO_START)
    try:
        lark = text if is_lark else gbnf_to_lark(_with_other_names(text))
    except Exception as error:  # the converter raises plain ones
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise GrammarError(f"is no grammar in GBNF: {reason}") from error
    lark = _OPTIONS.sub("", lark)
    # The converter's terminals take what the next one needs: in `a b`, where `a ::= [a-z]+`.
    flat = None if is_lark else flat_terminals(lark, "FLAT_")
    return NO_FORCING + ("\n".join(["start: FLAT_0", *flat]) if flat else lark)


def _with_other_names(gbnf: str) -> str:
    """For rules whose names the converter would take for another one's, or for its own `start`."""
    begin, taken, renamed = "rule", {"start"}, dict[str, str]()
    while begin in gbnf.lower():
        begin += "x"
    for name in dict.fromkeys(_GBNF_HEAD.findall(gbnf)):
        if name == "root":
            continue
        converted = _HUMP.sub("_", name.replace("-", "_")).lower()
        if converted in taken:
            renamed[name] = f"{begin}-{len(renamed)}"
        taken.add(converted)
    return _GBNF_NAME.sub(lambda found: found[1] or renamed.get(found[0], found[0]), gbnf)


def _written_out(escape: re.Match[str]) -> str:
    """The converter makes other escapes of these than Lark has, and refuses xgrammar's hyphen."""
    character = chr(int(escape[1] or "2d", 16))
    return character if character.isalnum() else escape[0].replace(r"\-", r"\x2d")


def _translate_tag(text: str, dialect: GrammarDialect) -> Iterator[str]:
    from llguidance import regex_to_lark

    return tag_grammars(
        *(read_structural_tag(text), dialect.form, to_lark),
        to_regex=lambda pattern: regex_to_lark(_escaping_something(pattern), ""),
        special_ids=dialect.special_ids,
    )


_TRANSLATIONS: dict[str, Callable[[str, GrammarDialect], str]] = {
    JSON_SCHEMA: lambda text, dialect: json_grammar(read_schema(text), dialect.form),
    REGEX: lambda text, _: _translate_regex(text),
    EBNF: lambda text, _: _translate_ebnf(text),
}
