"""Answers that must obey a JSON schema, beside the same prompts without one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vivace.bench.tokenizer import TokenCodec
from vivace.bench.workload import BenchRequest

ENDLESS = 1000
"""items of a list: more than fit an answer, so that every answer is as long as was asked"""
STRINGS = {
    "type": "array",
    "minItems": ENDLESS,
    "items": {"type": "string", "maxLength": 20},
}
RECORDS = {
    "type": "array",
    "minItems": ENDLESS,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}
FIELDS = 30
REQUIRED = 20


def long_schema(name: str) -> dict[str, Any]:
    """Some 250 lines when it is indented; each name is of another one."""
    chance = random.Random(name)
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 40},
        {"type": "integer", "minimum": 0},
        {"enum": [f"value {chance.randrange(10**6)}" for _ in range(4)]},
        {"type": "array", "items": {"type": "string"}},
        {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "boolean"}},
            "required": ["a"],
        },
    ]
    names = [f"field_{number}_{chance.randrange(10**6)}" for number in range(FIELDS)]
    return {
        "type": "object",
        "properties": {name: kinds[at % len(kinds)] for at, name in enumerate(names)},
        "required": names[:REQUIRED],
        "additionalProperties": False,
    }


SchemaOf = Callable[[str], dict[str, Any] | None]
"""what the answer to a request of this name must obey"""


@dataclass(frozen=True, kw_only=True)
class ConstrainedLoad:
    title: str
    requests: int
    concurrency: int
    output: int
    schema: SchemaOf


def _many(what: str, schema: SchemaOf) -> ConstrainedLoad:
    title = f"32 requests, all at once, 96 out, {what}"
    return ConstrainedLoad(title=title, requests=32, concurrency=32, output=96, schema=schema)


def _first(what: str, schema: SchemaOf) -> ConstrainedLoad:
    title = f"8 requests one by one, 4 out, {what}"
    return ConstrainedLoad(title=title, requests=8, concurrency=1, output=4, schema=schema)


CONSTRAINED: dict[str, ConstrainedLoad] = {
    "unconstrained": _many("no schema", lambda name: None),
    "records": _many("a list of records", lambda name: RECORDS),
    "strings": _many("a list of bounded strings", lambda name: STRINGS),
    "first": _first("no schema", lambda name: None),
    "first-schema": _first("each a schema of 250 lines that is new", long_schema),
}


@dataclass(frozen=True, kw_only=True)
class ConstrainedWorkload:
    """Short prompts in words, no two alike within a run."""

    name: str
    load: ConstrainedLoad
    codec: TokenCodec

    @property
    def title(self) -> str:
        return self.load.title

    @property
    def concurrency(self) -> int:
        return self.load.concurrency

    @property
    def output(self) -> int:
        return self.load.output

    @property
    def input_len(self) -> int:
        return max(query.input_len for query in self.queries([], ""))

    def queries(self, ids: Sequence[int], seed: str) -> list[BenchRequest]:
        chance = random.Random(f"{seed}/{self.name}")
        numbers = chance.sample(range(1000, 10000), self.load.requests)
        texts = [f"Write a list of things, number {number}: " for number in numbers]
        return [
            BenchRequest(
                prompt=prompt,
                input_len=len(prompt),
                output_len=self.output,
                json_schema=self.load.schema(f"{seed}/{number}"),
            )
            for number, prompt in zip(numbers, self.codec.encode(texts), strict=True)
        ]
