"""What xgrammar enforces whole. Of other constraints it leaves parts out without saying so:
keywords that stand without their `type`, beside a choice or a reference, and some always.

All this is asked about what llguidance enforces: it is well-formed, neither too deep nor endless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from vivace.grammar.schema_keywords import DEFINITIONS
from vivace.grammar.tag_forms import read_kind
from vivace.parsers.schema_strings import NOTES

_NOTES = NOTES | {"deprecated", "readOnly", "writeOnly", "$schema", *DEFINITIONS}
"""keywords that nothing has to obey"""
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_KEYWORDS: dict[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": _BOUNDS,
    "number": frozenset(),  # with bounds it allows `-.5`
    "string": frozenset(),  # with lengths it allows characters that JSON does not
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}
"""what is enforced beside each type"""
_TAG_KINDS = frozenset(
    "const_string json_schema sequence or tag triggered_tags tags_with_separator".split()
)
_EXACT = 1 << 53
"""larger numbers lose digits"""
_REFERENCE = re.compile(r"#(/[\w$.-]+)*")
_NAME = re.compile(r"[\w $.:/@#-]*")
"""that is written the same in a schema, a grammar and JSON"""
_REGEX = re.compile(
    r"""(?:[^\\.^$(\[]           # `.` may be the end of a line there, `\s` more than white space
    |\\[dw.*+?()\[\]{}|/^$\\-]
    |\((?!\?)
    |\[\^?(?:[^\\\[\]^]|\\[\]\\-])+\]
    )+""",
    re.VERBOSE,
)


def enforces_regex(pattern: str) -> bool:
    return _REGEX.fullmatch(pattern) is not None


def enforces_tag(node: Mapping[str, Any], special: Collection[str]) -> bool:
    """A format of a structural tag. `special`: texts that have to be tokens of their own."""
    parts = [*node.get("elements", ()), *node.get("tags", ()), *filter(None, [node.get("content")])]
    if (kind := read_kind(node)) not in _TAG_KINDS or {"excludes", "patterns", "unlike"} & {*node}:
        return False
    if kind == "json_schema":
        return enforces(node.get("json_schema", True))
    ends = node.get("end", "")
    texts = [node.get("value", ""), node.get("begin", ""), node.get("separator", "")]
    texts += [*(ends if isinstance(ends, list) else [ends]), *node.get("triggers", ())]
    if any(word in text for text in texts for word in special):
        return False
    return all(enforces_tag(part, special) for part in parts)


def enforces(schema: Any) -> bool:
    """A JSON schema."""
    if not isinstance(schema, dict):
        return schema is True
    parts = _parts(schema)
    defined = [one for name in DEFINITIONS for one in schema.get(name, {}).values()]
    return parts is not None and all(map(enforces, [*parts, *defined]))


def _parts(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """The schemas in it; None: it says something that is not enforced."""
    said = set(schema) - _NOTES
    if not said:
        return ()
    if len(said) == 1 and (keyword := said.pop()) in _ALONE:
        return _ALONE[keyword](schema[keyword])
    kind = schema.get("type")
    if isinstance(kind, list):
        return () if kind and not said - {"type"} else None
    if kind is None or said - {"type"} - _KEYWORDS[kind]:
        return None
    if not all(_is_exact(schema.get(bound, 0)) for bound in _BOUNDS):
        return None
    if kind == "object":
        return _object_parts(schema)
    return [*schema.get("prefixItems", ()), schema.get("items") or True]


def _is_exact(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _EXACT


def _values(values: Sequence[Any]) -> Sequence[Any] | None:
    """Fractions lose digits, and so may what is in lists and objects."""
    plain = all(
        value is None or isinstance(value, str) or (isinstance(value, int) and _is_exact(value))
        for value in values
    )
    return () if plain else None


def _object_parts(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    properties: dict[str, Any] = schema.get("properties", {})
    others = schema.get("additionalProperties", False)
    if properties and others is not False:  # a name may come twice then, once as another one
        return None
    if set(schema.get("required", ())) - set(properties):
        return None
    if not all(map(_NAME.fullmatch, properties)):
        return None
    return [*properties.values(), others or True]


_ALONE: dict[str, Callable[[Any], Sequence[Any] | None]] = {
    "$ref": lambda where: () if _REFERENCE.fullmatch(where) else None,
    "anyOf": lambda choices: choices or None,
    "allOf": lambda parts: parts if len(parts) == 1 else None,
    "enum": _values,
    "const": lambda value: _values([value]),
}
"""beside which other keywords would not count"""
