"""A constraint as a request brings it -> text in llguidance's language."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.endless_rules import check_ends
from vivace.grammar.json_schema import json_grammar, read_schema
from vivace.grammar.schema_refusals import explain_expression, explain_refusal
from vivace.grammar.structural_tag import NO_FORCING, tag_grammar, tag_schemas
from vivace.grammar.tag_forms import read_structural_tag
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint

MAX_REASON = 400
_OPTIONS = re.compile(r"^[ \t]*%llguidance\b.*$", re.MULTILINE)
_LARK = re.compile(r"^[^\S\n]*(?:%llguidance\b|start\s*:)", re.MULTILINE)
"""as llguidance tells it from GBNF; its own expression takes the square of blank lines"""
_ESCAPED = re.compile(r"(?<!\\)\\u([0-9a-fA-F]{4})")


@dataclass(frozen=True)
class GrammarDialect:
    """What a translation depends on besides the constraint."""

    form: JsonFormat
    special_ids: Mapping[str, int]
    """texts that are tokens of their own -> these"""


def translate(constraint: Constraint, dialect: GrammarDialect) -> str:
    """In llguidance's language. Raises GrammarError for what is no grammar."""
    return _TRANSLATIONS[constraint.kind](constraint.text, dialect)


def explain(constraint: Constraint, reason: str) -> str:
    """What the library says of its translation -> what the client is told."""
    match constraint.kind:
        case kind if kind == JSON_SCHEMA:
            return explain_refusal([("", read_schema(constraint.text))], reason)
        case kind if kind == STRUCTURAL_TAG:
            return explain_refusal(tag_schemas(read_structural_tag(constraint.text)), reason)
        case kind if kind == REGEX:
            return explain_expression(reason)
        case _:
            return " ".join(reason.split())[:MAX_REASON]


def _translate_schema(text: str, dialect: GrammarDialect) -> str:
    return json_grammar(read_schema(text), dialect.form)


def _translate_regex(text: str, dialect: GrammarDialect) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(text)


def _translate_ebnf(text: str, dialect: GrammarDialect) -> str:
    from llguidance import LLMatcher

    lark = to_lark(text)
    check_ends(lark)
    return LLMatcher.grammar_from_lark(lark)


def to_lark(text: str) -> str:
    """Of a grammar in GBNF, or in Lark's syntax already. Raises GrammarError."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = _ESCAPED.sub(_written_out, text)
    try:
        lark = text if _LARK.search(text) else gbnf_to_lark(text)
    except Exception as error:  # the converter raises plain ones
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise GrammarError(f"is no grammar in GBNF or Lark: {reason}") from error
    return NO_FORCING + _OPTIONS.sub("", lark)


def _written_out(escape: re.Match[str]) -> str:
    """The converter makes other escapes of these than Lark has."""
    character = chr(int(escape[1], 16))
    return character if character.isalnum() else escape[0]


def _translate_tag(text: str, dialect: GrammarDialect) -> str:
    from llguidance import regex_to_lark

    return tag_grammar(
        *(read_structural_tag(text), dialect.form, to_lark),
        to_regex=lambda pattern: regex_to_lark(pattern, ""),
        special_ids=dialect.special_ids,
    )


_TRANSLATIONS: dict[str, Callable[[str, GrammarDialect], str]] = {
    JSON_SCHEMA: _translate_schema,
    REGEX: _translate_regex,
    EBNF: _translate_ebnf,
    STRUCTURAL_TAG: _translate_tag,
}
