"""Random constraints: plain ones, strange ones, and such as want to be expensive."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint

NAMES = ["a", "b", "name", "ä", "", "$ref", "x" * 40, "a/b", "~", '"', "\\", "😀", "\n"]
SIZES = [0, 1, 2, 3, 7, 20, 100, 1000, 10**5, 2**31, 10**18, -1, 1.5, "3", None]
NUMBERS = [0, 1, -1, 0.1, 1e-9, 1e300, 10**25, 7, 150, -20, "1", None]
FORMATS = ["date", "date-time", "email", "uuid", "ipv4", "uri", "regex", "nonsense"]
REFERENCES = ["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/nowhere", "http://x/y", "#a"]


def random_constraint(chance: Random) -> Constraint:
    kind = chance.choice([JSON_SCHEMA, JSON_SCHEMA, REGEX, EBNF, STRUCTURAL_TAG])
    text = MAKERS[kind](chance)
    if chance.random() < 0.05:
        text = mutated(text, chance)
    return Constraint(kind=kind, text=text)


def mutated(text: str, chance: Random) -> str:
    """A few characters are missing, others are twice, or stand elsewhere."""
    letters = list(text)
    for _ in range(chance.randint(1, 5)):
        if not letters:
            break
        place = chance.randrange(len(letters))
        change = chance.randrange(3)
        if change == 0:
            del letters[place]
        elif change == 1:
            letters.insert(place, letters[place])
        else:
            letters.insert(chance.randrange(len(letters)), letters.pop(place))
    return "".join(letters)


# --- JSON schemas -----------------------------------------------------------------------------


def schema_text(chance: Random) -> str:
    schema = random_schema(chance, chance.choice([1, 2, 3, 4]))
    if isinstance(schema, dict) and chance.random() < 0.3:
        schema["$defs"] = {name: random_schema(chance, 2) for name in "ab"}
    if chance.random() < 0.03:
        for _ in range(chance.choice([20, 95, 150])):
            schema = {"type": "array", "items": schema}
    return json.dumps(schema, ensure_ascii=chance.random() < 0.5)


def random_schema(chance: Random, depth: int) -> Any:
    if chance.random() < 0.03:
        return chance.choice([True, False, {}, None, [], "string", 3])
    makers = LEAVES if depth <= 0 else [*LEAVES, *TREES, *TREES]
    schema = chance.choice(makers)(chance, depth - 1)
    if chance.random() < 0.03:
        schema |= chance.choice([{"not": {}}, {"if": {}}, {"title": "t"}, {"nullable": True}])
    return schema


def string(chance: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if chance.random() < 0.3:
        schema["maxLength"] = chance.choice(SIZES)
    if chance.random() < 0.2:
        schema["minLength"] = chance.choice(SIZES)
    if chance.random() < 0.2:
        schema["pattern"] = regex_text(chance)
    if chance.random() < 0.15:
        schema["format"] = chance.choice(FORMATS)
    return schema


def number(chance: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": chance.choice(["integer", "number"])}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        if chance.random() < 0.2:
            schema[key] = chance.choice(NUMBERS)
    return schema


def values(chance: Random, depth: int) -> dict[str, Any]:
    several = [
        chance.choice([*NAMES, *NUMBERS, [1, {"a": []}]]) for _ in range(chance.randint(0, 5))
    ]
    if chance.random() < 0.05:
        several = [f"{chance.randrange(10**6)}" for _ in range(2000)]
    return {"enum": several} if chance.random() < 0.7 else {"const": chance.choice(NAMES)}


def simple(chance: Random, depth: int) -> dict[str, Any]:
    kinds = ["null", "boolean", "string", "object", "array", "nothing"]
    return {"type": chance.choice([*kinds, ["string", "null"], ["integer", "object"], []])}


def reference(chance: Random, depth: int) -> dict[str, Any]:
    return {"$ref": chance.choice(REFERENCES)}


def list_schema(chance: Random, depth: int) -> dict[str, Any]:
    """A list, perhaps of impossible sizes."""
    schema: dict[str, Any] = {"type": "array", "items": random_schema(chance, depth)}
    if chance.random() < 0.3:
        schema["prefixItems"] = [random_schema(chance, depth) for _ in range(2)]
    for key in ("minItems", "maxItems"):
        if chance.random() < 0.3:
            schema[key] = chance.choice(SIZES)
    if chance.random() < 0.05:
        schema[chance.choice(["uniqueItems", "contains"])] = True
    return schema


def object_schema(chance: Random, depth: int) -> dict[str, Any]:
    """An object, sometimes with very many properties."""
    names = chance.sample(NAMES, chance.randint(0, 5))
    if chance.random() < 0.03:
        names = [f"property_{number}" for number in range(chance.choice([50, 500]))]
        depth = 0
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(chance, depth) for name in names},
        "required": [name for name in names if chance.random() < 0.5],
    }
    if chance.random() < 0.5:
        schema["additionalProperties"] = chance.choice([False, True, {"type": "integer"}])
    if chance.random() < 0.1:
        schema["patternProperties"] = {regex_text(chance): random_schema(chance, depth)}
    for key in ("minProperties", "maxProperties"):
        if chance.random() < 0.05:
            schema[key] = chance.choice(SIZES)
    return schema


def choice_schema(chance: Random, depth: int) -> dict[str, Any]:
    """Several schemas of which one or all count."""
    key = chance.choice(["anyOf", "anyOf", "oneOf", "allOf"])
    return {key: [random_schema(chance, depth) for _ in range(chance.randint(0, 4))]}


LEAVES = [string, number, values, simple, reference]
TREES = [list_schema, object_schema, choice_schema]

# --- expressions --------------------------------------------------------------------------------

ATOMS = [
    "a",
    "b",
    "ä",
    ".",
    "[a-z]",
    "[^\\n]",
    "\\d",
    "\\w",
    "\\s",
    "😀",
    "[\\x00-\\x7f]",
    "\\p{L}",
]
STRANGE = [
    "(?=a)",
    "(?!b)",
    "\\b",
    "\\1",
    "^",
    "$",
    "(?i)a",
    "[",
    ")",
    "\\",
    "(?P<n>a)",
    "\\u{1F600}",
]
REPEATS = ["*", "+", "?", "{2}", "{0,3}", "{1,100}", "{3,}", "{1000}", "{0,99999}", "*?", "{,5}"]


def regex_text(chance: Random, depth: int = 3) -> str:
    parts: list[str] = []
    for _ in range(chance.randint(1, 4)):
        if depth and chance.random() < 0.3:
            options = [regex_text(chance, depth - 1) for _ in range(chance.randint(1, 3))]
            part = f"({'|'.join(options)})"
        else:
            part = chance.choice(STRANGE if chance.random() < 0.02 else ATOMS)
        parts.append(part + (chance.choice(REPEATS) if chance.random() < 0.4 else ""))
    return "".join(parts)


# --- grammars -----------------------------------------------------------------------------------

RULES = ["root", "item", "value", "other"]
WORDS = ['"a"', '"ab"', '"\\n"', '"ä"', "[a-z]", "[^a]", "[0-9]+", '""', '"\\u0041"', '"\\x41"']


def grammar_text(chance: Random) -> str:
    rules = RULES[: chance.randint(1, len(RULES))]
    lines = [f"{name} ::= {alternatives(chance, rules, 2)}" for name in rules]
    if chance.random() < 0.05:
        lines.append(chance.choice(["missing", "x ::=", "root ::= root root", "# words", "::="]))
    return "\n".join(lines)


def alternatives(chance: Random, rules: list[str], depth: int) -> str:
    return " | ".join(sequence(chance, rules, depth) for _ in range(chance.randint(1, 3)))


def sequence(chance: Random, rules: list[str], depth: int) -> str:
    parts: list[str] = []
    for _ in range(chance.randint(1, 4)):
        draw = chance.random()
        if depth and draw < 0.2:
            part = f"({alternatives(chance, rules, depth - 1)})"
        elif draw < 0.45:
            part = chance.choice([*rules, "unknown"] if chance.random() < 0.05 else rules)
        else:
            part = chance.choice(WORDS)
        repeat = chance.choice(["*", "+", "?", "{2}", "{1,3}", "{0,5000}", "{9999999}"])
        parts.append(part + (repeat if chance.random() < 0.25 else ""))
    return " ".join(parts)


TERMINALS = ["WORD", "LF", "DEEP"]
LINES = [
    "%import common.INT",
    "%import common.WORD -> OTHER",
    "%import .away.x",
    "%ignore / +/",
    "%ignore WORD",
    "%declare X",
    '%llguidance {"allow_invalid_utf8": true}',
    'deep: %json {"type": "object"}',
    'start: start "a"',
    "EMPTY: /a*/",
    "LOOP: LOOP LF",
    "HUGE: /(a|ab|b){0,2000}/",
    "a{x}: x x",
    "// words",
    "?x.2: WORD -> y",
]


def lark_text(chance: Random) -> str:
    rules = ["start", *RULES[1 : chance.randint(1, len(RULES))]]
    lines = [f"{name}: {alternatives(chance, [*rules, *TERMINALS], 2)}" for name in rules]
    for name in TERMINALS:
        body = regex_text(chance, 2).replace("/", "") or "a"
        more = chance.choice(["", "", " /a/ WORD", ' | "b"', " & /[ab]*/", " ~/b+/"])
        lines.append(f"{name}: /{body}/{chance.choice(['', '', 'i', 's'])}{more}")
    while chance.random() < 0.2:
        lines.insert(chance.randint(0, len(lines)), chance.choice(LINES))
    return "\n".join(lines)


# --- tags ---------------------------------------------------------------------------------------

TEXTS = ["<f>", "</f>", "<", "", "a", "\n", "<|call|>", "😀", "<tool_call>"]


def tag_text(chance: Random) -> str:
    if chance.random() < 0.3:
        structures = [
            {
                "begin": chance.choice(TEXTS),
                "schema": random_schema(chance, 1),
                "end": chance.choice(TEXTS),
            }
            for _ in range(chance.randint(0, 3))
        ]
        return json.dumps({"structures": structures, "triggers": chance.sample(TEXTS, 2)})
    return json.dumps({"format": random_format(chance, chance.choice([1, 2, 3]))})


def random_format(chance: Random, depth: int) -> dict[str, Any]:
    makers = PARTS if depth <= 0 else [*PARTS, *GROUPS]
    return chance.choice(makers)(chance, depth - 1)


def tag(chance: Random, depth: int) -> dict[str, Any]:
    content = random_format(chance, depth)
    return {
        "type": "tag",
        "begin": chance.choice(TEXTS),
        "content": content,
        "end": chance.choice([*TEXTS, ["a", "b"], [], None]),
    }


def tags(chance: Random, depth: int) -> dict[str, Any]:
    return {
        "type": chance.choice(["triggered_tags", "tags_with_separator"]),
        "triggers": chance.sample(TEXTS, 2),
        "separator": chance.choice(TEXTS),
        "tags": [tag(chance, depth) for _ in range(chance.randint(0, 3))],
        "at_least_one": chance.random() < 0.5,
        "stop_after_first": chance.random() < 0.3,
    }


def group(chance: Random, depth: int) -> dict[str, Any]:
    elements = [random_format(chance, depth) for _ in range(chance.randint(0, 4))]
    return {"type": chance.choice(["sequence", "or"]), "elements": elements}


def repeat(chance: Random, depth: int) -> dict[str, Any]:
    kind = chance.choice(["optional", "star", "plus", "repeat"])
    bounds = {"min": chance.choice([0, 1, 3, 1000]), "max": chance.choice([-1, 1, 4, 1000])}
    return {"type": kind, "content": random_format(chance, depth), **bounds}


PARTS: list[Callable[[Random, int], dict[str, Any]]] = [
    lambda chance, depth: {"type": "const_string", "value": chance.choice(TEXTS)},
    lambda chance, depth: {"type": "json_schema", "json_schema": random_schema(chance, 1)},
    lambda chance, depth: {"type": "regex", "pattern": regex_text(chance, 1)},
    lambda chance, depth: {"type": "grammar", "grammar": grammar_text(chance)},
    lambda chance, depth: {"type": chance.choice(["any_text", "any_text", "what"])},
]
GROUPS = [tag, tags, group, repeat]
MAKERS = {
    JSON_SCHEMA: schema_text,
    REGEX: regex_text,
    EBNF: grammar_text,
    STRUCTURAL_TAG: tag_text,
}
