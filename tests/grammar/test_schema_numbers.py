"""Bounds of numbers: what may be an answer is valid, as `jsonschema` judges."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from grammar_kit import EOS, schema_matcher
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.grammar.backend import GrammarError

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
ROUND = [-5, -2.5, -2, -1, -0.75, -0.5, -0.01, 0, 0.01, 0.5, 0.75, 1, 2, 2.5, 3.0, 5, 5.5]
MANY_DIGITS = [123456789.12345679, 0.1234567890123456, 0.30000000000000004, 5e-324, 2**53 + 1]
LARGE = [10**17, 10**18 - 1, 1e18, 2**60 + 1, 2**63 - 1, 9223372036854774785, 9223372036854774807]
FEW = [one * sign for one in [*ROUND[7:], *MANY_DIGITS] for sign in (1, -1)]
TRIED = sorted({Decimal(repr(one)) for one in FEW})
BOUNDS = st.sampled_from([*ROUND, *ROUND, *MANY_DIGITS, *LARGE]).flatmap(
    lambda one: st.sampled_from([one, -one])
)
LOWERS = st.tuples(st.sampled_from(LOWER), BOUNDS)
UPPERS = st.tuples(st.sampled_from(UPPER), BOUNDS)
SOME = st.lists(LOWERS | UPPERS, min_size=1, max_size=3)


def _texts(bounds: list[int | float]) -> set[str]:
    """Of numbers, those around the bounds among them."""
    exact = {Decimal(repr(one)) for one in bounds} | {*TRIED}
    steps = [Decimal(step) for step in ("0", "0.01", "0.3", "0.5", "1", "5", "16", "1000", "1e15")]
    return {f"{one + sign * step:f}" for one in exact for step in steps for sign in (1, -1)}


@settings(max_examples=60, deadline=None)
@given(
    SOME,
    st.sampled_from([{"type": "number"}, {"type": "integer"}, {"type": ["number", "null"]}]),
    st.booleans(),
)
def test_numbers_are_inside_of_their_bounds(
    bounds: list[tuple[str, Any]], kind: dict[str, Any], together: bool
) -> None:
    schema = {**kind, **dict(bounds)}
    if not together:
        schema = {**kind, "allOf": [{key: bound} for key, bound in bounds]}
    try:
        start = schema_matcher(schema)
    except GrammarError as error:
        assert "float range" not in str(error)
        return
    exact = json.loads(json.dumps(schema), parse_float=Decimal)  # 0.01 is less than its double
    validator = jsonschema.Draft202012Validator(exact)
    for text in _texts([bound for _, bound in bounds]):
        ids = [*text.encode(), EOS]
        if start.copy().accept(ids) == len(ids):
            assert validator.is_valid(json.loads(text, parse_float=Decimal)), (schema, text)


@pytest.mark.parametrize("bound", [2**53, 10**17, -(10**17), 1e17])
@pytest.mark.parametrize("keyword", ["exclusiveMinimum", "exclusiveMaximum"])
def test_large_bounds_are_strict_for_integers_of_another_schema(keyword: str, bound: float) -> None:
    if (keyword == "exclusiveMinimum") != (bound > 0):
        bound = -bound
    start = schema_matcher({"type": "integer", "allOf": [{keyword: bound}]})
    for number, good in ((int(bound), False), (2 * int(bound), True)):
        ids = [*str(number).encode(), EOS]
        assert (start.copy().accept(ids) == len(ids)) is good


@pytest.mark.parametrize("numbers", [(4, 6), (0.5, 0.03), (65537, 65539), (70_000,) * 2])
@pytest.mark.parametrize("key", ["allOf", "anyOf", "$ref"])
def test_common_multiples_are_those_of_all(numbers: tuple[Any, ...], key: str) -> None:
    """Of large ones the library had only the last 32 bits."""
    first, second = ({"multipleOf": number} for number in numbers)
    schema = {"allOf": [first, second]} if key == "allOf" else {**first, key: [second]}
    if key == "$ref":
        schema = {"items": {**first, key: "#/$defs/x"}, "$defs": {"x": second}}
    try:
        start = schema_matcher(schema)
    except GrammarError as error:
        assert "multipleOf" in str(error) and numbers[0] > 100
        return
    judge = jsonschema.Draft202012Validator(json.loads(json.dumps(schema), parse_float=Decimal))
    for text in (*map(str, range(1, 40)), "1.5", "0.03", "0.3", "262147", "4295229443"):
        text = f"[{text}]" if key == "$ref" else text
        ids = [*text.encode(), EOS]
        found = start.copy().accept(ids) == len(ids)
        assert found == judge.is_valid(json.loads(text, parse_float=Decimal)), text


@pytest.mark.parametrize("most", [2**32 - 1, 2**32, 2**53 + 1, 2**64, 10**30])
@pytest.mark.parametrize("keyword", ["maxLength", "maxItems", "maxProperties"])
def test_no_count_is_too_large(keyword: str, most: int) -> None:
    start = schema_matcher({"items": {keyword: most}})
    assert start.accept([*b'["a",[1],{"a":2}]', EOS]) == 18


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0.5 0.25 0.01 0.000001", "0 0.0 0.6"),
        ({"exclusiveMinimum": 5, "maximum": 5.5}, "5.5 5.1 5.01", "5 5.0"),
        ({"minimum": -2.5, "exclusiveMaximum": -2}, "-2.5 -2.1", "-2 -2.0 -2.6"),
        ({"minimum": 4.5, "exclusiveMaximum": 5}, "4.5 4.9 4.999", "5 4.4"),
        ({"exclusiveMaximum": 123456789.12345679}, "123456788.5 0", "123456789.12345679"),
        ({"exclusiveMaximum": 9223372036854774785}, "0 9223372036854000000", "9223372036854774785"),
        ({"minimum": 5e-324}, "0.01 1", "0 -1"),
        ({"exclusiveMinimum": 0}, "0.01 1 1000000000000000000", "0 -1"),
    ],
)
def test_what_is_inside(bounds: dict[str, Any], good: str, bad: str) -> None:
    start = schema_matcher({"type": "number", **bounds})
    for fits, texts in ((True, good), (False, bad)):
        for text in texts.split():
            ids = [*text.encode(), EOS]
            assert (start.copy().accept(ids) == len(ids)) is fits, text


@pytest.mark.parametrize(
    "bounds", [{"minimum": 1e18}, {"maximum": -1e18}, {"exclusiveMinimum": 2**60}]
)
def test_numbers_without_a_bound_of_the_library_are_refused(bounds: dict[str, Any]) -> None:
    (keyword,) = bounds
    with pytest.raises(GrammarError, match=keyword) as caught:
        schema_matcher({"items": {"type": "number", **bounds}})
    assert str(caught.value).startswith(f"items.{keyword}: ")


@pytest.mark.parametrize("bound", [10**17, 2**53, 38e16])
@pytest.mark.parametrize("sign", [1, -1])
def test_strict_bounds_of_whole_numbers_in_another_part(bound: float, sign: int) -> None:
    key = "exclusiveMaximum" if sign > 0 else "exclusiveMinimum"
    start = schema_matcher({"type": "integer", "allOf": [{key: sign * bound}]})
    for value, fits in ((bound, False), (bound - 1000, True), (bound + 1000, False)):
        ids = [*str(sign * int(value)).encode(), EOS]
        assert (start.copy().accept(ids) == len(ids)) == fits, value
