"""Grammars for which there is no finite text."""

from __future__ import annotations

import re

import pytest
from grammar_kit import compiled, obeys
from hypothesis import given
from hypothesis import strategies as st

from vivace.grammar.backend import GrammarError
from vivace.grammar.endless_rules import check_ends, has_no_finite_text
from vivace.protocol.constraints import EBNF

ENDLESS = [
    'root ::= "a" root',
    "root ::= root",
    'root ::= ("a" | "b") (root | x)\nx ::= "c" root+',
    'root ::= x{2,}\nx ::= "(" root ")"',
    'start: "a" p\np: "b" q // never\n | q "c"\nq: p ~ 2..3',
    '%llguidance {}\nstart: %json {"type": "null"} start',
]
FINITE = [
    ('root ::= "a" root | "b"', "aab"),
    ('root ::= "a" root?', "aaa"),
    ('root ::= "(" root* ")"', "(()())"),
    ('root ::= root{0,3} "a"', "a"),
    ('start: "a" [p] "b"\np: p "c"', "ab"),
    ('start: x "b"\nx: "a" x\n | Y\nY: /y+/', "ayb"),
]


@pytest.mark.parametrize("text", ENDLESS)
def test_what_never_ends_is_refused(text: str) -> None:
    with pytest.raises(GrammarError, match="never"):
        compiled(EBNF, text)


@pytest.mark.parametrize(("text", "answer"), FINITE)
def test_what_may_end_is_obeyed(text: str, answer: str) -> None:
    assert obeys(EBNF, text, answer)


@pytest.mark.parametrize("answer", ["bcbc", "(bc)(b)", "abcd", "ac", "bc"])
def test_a_rule_of_gbnf_leaves_the_next_one_what_it_needs(answer: str) -> None:
    for text, whole in (
        ("root ::= r {2,3}\nr ::= [bc]+ ", "[bc]{2,}"),
        ('root ::= "a"? word end\nword ::= [a-z]+\nend ::= [a-d]', "a?[a-z]+[a-d]"),
        ('root ::= r r\nr ::= "(" r? ")" | [bc]+ | "(" [bc]+ ")"', r"(?:\([bc]+\)|[bc]+){2}"),
    ):
        assert obeys(EBNF, text, answer) == (re.fullmatch(whole, answer) is not None), text


@pytest.mark.parametrize(
    "text",
    [
        'a: "x" -> b\nstart: @grammar_0 a',
        'start.2: @tags "a"',
        "start: /a\n/ @grammar_0 /b/",
        'start: %json {"a": "/"} @grammar_0 /b/',
    ],
)
def test_references_to_other_grammars_are_found_everywhere(text: str) -> None:
    with pytest.raises(GrammarError, match="refers"):
        check_ends(text)


def test_what_only_looks_like_a_reference_is_none() -> None:
    check_ends('start: "@a" /[@b]/ <@c> %json {"const": "@d"} // @e\n# @f')


def test_rules_with_aliases_are_read() -> None:
    assert has_no_finite_text('start: a "x" -> one\na: "(" start ")" -> two')
    assert not has_no_finite_text('start: a "x" -> start\na: "b" | start -> a')


def test_a_long_chain_takes_no_time() -> None:
    """Neither where the end is found rule after rule from behind, nor where there is none."""
    rules = [f"r{number}: r{number + 1} | r{number}" for number in range(3000)]
    assert has_no_finite_text("\n".join(["start: r0", *rules, "r3000: r0"]))
    assert not has_no_finite_text("\n".join(["start: r0", *rules, 'r3000: "a"']))


PIECES = [
    "start",
    "p",
    "X",
    '"a"',
    "/b/",
    "(",
    ")",
    "[",
    "]",
    "|",
    "*",
    "?",
    "{0,2}",
    ":",
    "\n",
    "%",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_any_text_is_read_or_left_to_the_library(pieces: list[str]) -> None:
    assert has_no_finite_text(" ".join(pieces)) in (True, False)
