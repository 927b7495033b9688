"""Automata that rows get when theirs have come to a limit."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from grammar_kit import BACKEND, SIZE, VOCABULARY

from vivace.grammar.backend import JsonFormat
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.masks import mask_words
from vivace.grammar.replay import follow, replay
from vivace.protocol.constraints import JSON_SCHEMA, REGEX, Constraint

SPLITTING = Constraint(kind=REGEX, text="[ab]*a[ab]{20}")
"""each text of 20 letters has a state of its own"""


def random_text(length: int) -> list[int]:
    return random.Random(1).choices(b"ab", k=length)


def test_another_matcher_goes_as_far_as_the_first() -> None:
    text = random_text(4000)
    first = BACKEND.compile(SPLITTING)
    assert first.copy().accept(text) == len(text)
    other = first.fresh()
    assert other is not None
    assert other.accept(text) == len(text), other.error


def test_an_answer_that_goes_on_is_not_refused_for_what_others_have_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vivace.grammar.llguidance_backend.MAX_LEXER_STATES", 300)
    start = LLGuidanceBackend(VOCABULARY, JsonFormat()).compile(SPLITTING)
    others, mask = start.copy(), np.zeros(mask_words(SIZE), np.int32)
    for token in random_text(400):
        others.accept([token])
        others.fill(mask)
    assert others.error
    text = [*b"ba" * 30]
    found = follow(start.copy(), text)
    assert found is not None and not found.error


def test_an_answer_that_needs_no_masks_has_as_much_work_as_others() -> None:
    """Of 200,000 pieces there were none left behind 819 letters, for all that have its lexer."""
    start = BACKEND.compile(Constraint(kind=REGEX, text=".*x.{300}"))
    text = random.Random(1).choices(b"axbc", k=3000)
    assert start.copy().accept(text) == replay(start.copy(), text) == len(text)
    tried = start.copy()
    assert all(tried.allows(token) and tried.accept([token]) for token in text), tried.error


def schema_cost(**keywords: object) -> int | None:
    """None: no other matcher is made of it in a step."""
    schema = {"type": "object", "properties": {"n": keywords}}
    matcher = BACKEND.compile(Constraint(kind=JSON_SCHEMA, text=json.dumps(schema)))
    return None if matcher.fresh() is None else matcher.cost


def test_only_what_takes_little_is_made_in_a_step() -> None:
    """Remainders take time, but neither characters nor the library's fuel."""
    plain = schema_cost(type="integer")
    some = schema_cost(type="integer", multipleOf=997)
    assert plain and some and plain < 5000 < some
    assert schema_cost(type="number", multipleOf=0.01)
    assert schema_cost(type="integer", multipleOf=24999) is None
    assert schema_cost(type="number", multipleOf=249.75) is None
    assert schema_cost(allOf=[{"multipleOf": 97}, {"multipleOf": 89}], type="integer") is None
    date = {"type": "string", "format": "date-time"}
    dates = schema_cost(type="object", properties={str(number): date for number in range(30)})
    assert dates and dates > 2 * plain
