"""Structural tags as clients write them, in either of SGLang's forms:
`{"structures": [{"begin", "schema", "end"}], "triggers": [...]}` or `{"format": {"type": ...}}`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from vivace.grammar.backend import GrammarError
from vivace.grammar.json_schema import walk
from vivace.grammar.tool_tags import json_value, tagged
from vivace.protocol.constraints import EBNF, REGEX, Constraint

ANY_TEXT = "any_text"
REPEATS = {"optional": (0, 1), "star": (0, -1), "plus": (1, -1), "repeat": None}
"""at least and at most, -1: without end; None: as it says itself"""
REPEATED = range(1001)
KINDS = (
    *("const_string", "json_schema", "regex", "grammar", ANY_TEXT, "sequence", "or", "tag"),
    *("triggered_tags", "tags_with_separator", *REPEATS, "definitions", "defined"),
)
"""of formats, that clients know; there are others that tools become"""


def read_kind(node: Mapping[str, Any]) -> str:
    """A tag need not say that it is one, as in xgrammar."""
    return str(node.get("type", "tag" if "begin" in node else "missing"))


def read_structural_tag(text: str) -> dict[str, Any]:
    """The format of a tag in either form. Raises GrammarError."""
    try:
        given = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise GrammarError("must be an object")
    if "structures" in given or "triggers" in given:
        return _triggered_structures(given)
    if not isinstance(found := given.get("format"), dict):
        raise GrammarError("format: must be an object; or give structures and triggers")
    return found


def _triggered_structures(given: dict[str, Any]) -> dict[str, Any]:
    structures, triggers = given.get("structures"), given.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise GrammarError("structures and triggers: must be lists")
    begins = [_structure_begin(one, f"structures.{i}") for i, one in enumerate(structures)]
    if not begins or not triggers:
        raise GrammarError(f"{'triggers' if begins else 'structures'}: must not be empty")
    for index, trigger in enumerate(triggers):
        if not trigger or not any(begin.startswith(str(trigger)) for begin in begins):
            raise GrammarError(f"triggers.{index}: no structure begins with {trigger!r:.60}")
    tags = [
        tagged(one["begin"], json_value(one.get("schema"), f"structures.{i}.schema"), one["end"])
        for i, one in enumerate(structures)
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _structure_begin(structure: Any, place: str) -> str:
    if not isinstance(structure, dict):
        raise GrammarError(f"{place}: must be an object with begin, schema and end")
    end = structure.get("end")
    if not isinstance(end, list):  # xgrammar takes several
        node_text(structure, "end", place)
    elif not end or not all(isinstance(one, str) for one in end):
        raise GrammarError(f"{place}.end: must be a text, or a list of texts")
    return node_text(structure, "begin", place)


def node_text(node: dict[str, Any], key: str, place: str) -> str:
    value = node.get(key)
    if not isinstance(value, str):
        raise GrammarError(f"{place}.{key}: must be a text")
    return value


def node_texts(node: dict[str, Any], key: str, place: str) -> list[str]:
    value = node.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise GrammarError(f"{place}.{key}: must be a list of texts that are not empty")
    return value


def node_list(node: dict[str, Any], key: str, place: str) -> list[Any]:
    value = node.get(key)
    if not isinstance(value, list) or not value:
        raise GrammarError(f"{place}.{key}: must be a list that is not empty")
    return value


def has_type(node: Any, kind: str) -> bool:
    return isinstance(node, dict) and node.get("type") == kind


def tag_schemas(root: Any) -> list[tuple[str, Any]]:
    """The JSON schemas in a format, each with its place in what the client has sent."""
    return [
        (schema_place(node, ".".join(map(str, ("format", *path)))), node.get("json_schema", True))
        for path, node in walk(root)
        if has_type(node, "json_schema")
    ]


def tag_texts(root: Any) -> list[tuple[str, Constraint]]:
    """The expressions and grammars in a format, each with its place in what the client has sent."""
    found: dict[tuple[str, Constraint], None] = {}
    for path, node in walk(root):
        place = ".".join(map(str, ("format", *path)))
        if has_type(node, "regex"):
            texts = {f"{place}.pattern": node.get("pattern")}
        elif has_type(node, "grammar"):
            texts = {f"{place}.grammar": node.get("grammar")}
        elif has_type(node, ANY_TEXT):
            texts = {
                f"{place}.{key}.{i}": text
                for key in ("patterns", "unlike")
                for i, text in enumerate(node_texts(node, key, place))
            }
        else:
            continue
        kind = EBNF if node["type"] == "grammar" else REGEX
        for at, text in texts.items():
            if isinstance(text, str):
                found[str(node.get("place", at)), Constraint(kind=kind, text=text)] = None
    return list(found)


@contextmanager
def blaming(node: dict[str, Any], place: str) -> Iterator[None]:
    """What is wrong with a text is told with its place."""
    try:
        yield
    except GrammarError as error:
        raise GrammarError(f"{node.get('place', place)}: {error}") from error


def schema_place(node: dict[str, Any], place: str) -> str:
    """`place`: of the part, when it was written by the client itself."""
    return str(node.get("place", f"{place}.json_schema"))


def quote_text(text: str) -> str:
    """Of control characters JSON leaves one as it is, which Lark does not read."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_pattern(text: str) -> str:
    """An expression of this text alone."""
    return re.escape(text).replace("\\\n", "\\n")
