"""Random definitions of tools, and answers with calls of them: as models write them, damaged, and
such as nobody would write."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from random_constraints import NAMES, lark_text, mutated, random_schema, regex_text
from transcripts import HARMONY, TRANSCRIPTS

CALLED = ["get_weather", "search", "now", "a", "a.b", "x-y", "functions.a", "ä"]
STRANGE_NAMES = ["", " ", "a b", "a\n", "\x00", "{name}", '"', "<|end|>", "x" * 257, "😀"]
CHOICES: list[Any] = [None, "auto", "required", "none", "any", ""]
MARKERS = sorted(
    {each.text[:18] for each in TRANSCRIPTS} | {each.text[-14:] for each in TRANSCRIPTS}
)
PIECES = [
    *("<tool_call>", "</tool_call>", "<function=", "<parameter=", "</parameter>", "</function>"),
    *(
        "<think>",
        "</think>",
        "◁think▷",
        "◁/think▷",
        "[THINK]",
        "[/THINK]",
        "[TOOL_CALLS]",
        "[ARGS]",
    ),
    *(
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|start|>assistant",
        "analysis",
        " to=",
    ),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>", "get_weather"),
    *(
        '{"name": "',
        '", "arguments": ',
        '", "parameters": ',
        '{"input": "',
        "```\n",
        "\n```",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        "\\u12",
    ),
    *("city", "Paris", "3", "null", "True", "1e999", "NaN", " ", "\n", "\u2028", "\x00", "😀", ">"),
    *("(", ")", "=", ",", ":", ";", "'", "<", "<｜", "｜DSML｜", "```json", "a" * 300, "-0"),
    *MARKERS,
]


def random_tools(chance: Random) -> dict[str, Any]:
    """What a body of /v1/chat/completions has of them."""
    names = chance.sample(CALLED, chance.randint(0, 4))
    if chance.random() < 0.03:
        names.append(chance.choice([*STRANGE_NAMES, *CALLED]))
    tools = [random_tool(chance, name) for name in names]
    kind = chance.choice(["function", "function", "custom"])
    named = {"type": kind, kind: {"name": chance.choice([*names, "nobody"])}}
    allowed = {"tools": [named], "mode": chance.choice(["auto", "required"])}
    narrowed = {"type": "allowed_tools", "allowed_tools": allowed}
    body: dict[str, Any] = {
        "tools": tools,
        "tool_choice": chance.choice([*CHOICES, "required", named, narrowed]),
    }
    if chance.random() < 0.02:
        body["tools"] = [random_tool(chance, f"tool_{number}") for number in range(300)]
    return body


def random_tool(chance: Random, name: str) -> dict[str, Any]:
    if chance.random() < 0.25:
        return random_custom_tool(chance, name)
    function: dict[str, Any] = {"name": name}
    if chance.random() < 0.9:
        function["parameters"] = random_parameters(chance)
    if chance.random() < 0.5:
        function["strict"] = chance.choice([True, True, False, None])
    if chance.random() < 0.3:
        function["description"] = chance.choice([*NAMES, "a" * 5000])
    tool: dict[str, Any] = {"type": "function", "function": function}
    if chance.random() < 0.02:
        tool |= chance.choice([{"type": "web_search"}, {"function": None}, {"type": 3}])
    return tool


def random_custom_tool(chance: Random, name: str) -> dict[str, Any]:
    syntax = chance.choice(["regex", "lark"])
    text = regex_text(chance, chance.choice([1, 2, 3])) if syntax == "regex" else lark_text(chance)
    if chance.random() < 0.1:
        text = mutated(text, chance)
    form: Any = {"type": "grammar", "grammar": {"syntax": syntax, "definition": text}}
    if chance.random() < 0.1:
        form = chance.choice([None, {"type": "text"}, {"type": "grammar"}, {"type": "json"}])
    return {"type": "custom", "custom": {"name": name, "format": form}}


def random_parameters(chance: Random) -> Any:
    """Mostly schemas of objects, as they should be."""
    if chance.random() < 0.3:
        return random_schema(chance, chance.choice([0, 1, 2, 3]))
    names = chance.sample([*NAMES, "city", "days"], chance.randint(0, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(chance, chance.choice([0, 1, 2])) for name in names},
    }
    if chance.random() < 0.7:
        schema["required"] = [name for name in names if chance.random() < 0.6]
    if chance.random() < 0.5:
        schema["additionalProperties"] = False
    if chance.random() < 0.1:
        schema["$defs"] = {"a": random_schema(chance, 1)}
    return schema


def random_answer(chance: Random) -> str:
    """What a model may say, from well-formed calls to noise."""
    parts: list[str] = []
    for _ in range(chance.randint(1, 6)):
        draw = chance.random()
        if draw < 0.35:
            text = chance.choice([*(each.text for each in TRANSCRIPTS), HARMONY])
            cut = chance.randrange(len(text)) if chance.random() < 0.3 else len(text)
            parts.append(mutated(text[:cut], chance) if chance.random() < 0.4 else text[:cut])
        elif draw < 0.9:
            parts += [chance.choice(PIECES) for _ in range(chance.randint(1, 12))]
        else:
            parts.append(json.dumps(chance.choice([NAMES, {"name": "now"}, {"arguments": {}}])))
    if chance.random() < 0.05:
        parts.append(chance.choice(PIECES) * 200)
    return "".join(parts)


def random_cuts(chance: Random, text: str) -> list[str]:
    """The text in pieces."""
    count = chance.choice([1, 2, 5, 20])
    places = sorted(chance.randint(0, len(text)) for _ in range(count))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
