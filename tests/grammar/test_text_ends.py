"""A text that may end in several ways ends with the first that is complete, special tokens in it or
not: against a reference that looks at whole texts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from grammar_kit import CALL, EOS, VOCABULARY, compiled
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vivace.grammar.backend import GrammarError, GrammarMatcher
from vivace.grammar.text_ends import first_ends
from vivace.grammar.vocabulary import SpecialWords
from vivace.protocol.constraints import STRUCTURAL_TAG

MARK = "#"
"""stands for the special token"""
LETTERS = {"<": ord("<"), "c": ord("c"), MARK: CALL}
LONGEST = 5
ENDS = ("<#", "c<", "<", "c", "#", "#c", "c#", "<#c", "<<", "c<#", "<c#", "cc", "#<#")


def answers(node: dict[str, Any]) -> set[str]:
    """All of up to five letters that obey."""
    found = set[str]()
    grow("", compiled(STRUCTURAL_TAG, {"format": node}), found)
    return found


def grow(text: str, matcher: GrammarMatcher, found: set[str]) -> None:
    if matcher.allows(EOS):
        found.add(text)
    for letter, token in LETTERS.items() if len(text) < LONGEST else ():
        if matcher.allows(token):
            longer = matcher.copy()
            assert longer.accept([token]) == 1
            grow(text + letter, longer, found)


def ended(text: str, ends: list[str]) -> bool:
    """Whether there is one at its end, and none that is complete sooner, behind plain text."""
    last = [end for end in ends if text.endswith(end)]
    sooner = any(end in text[:-1] for end in ends)
    return not sooner and any(MARK not in text.removesuffix(end) for end in last)


def spelled(text: str) -> str:
    return text.replace(MARK, "<|call|>")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ENDS), min_size=1, max_size=3, unique=True))
def test_text_ends_with_the_first_of_several(ends: list[str]) -> None:
    tag = {"begin": "", "content": {"type": "any_text"}, "end": list(map(spelled, ends))}
    found = answers(tag)
    assert not [text for text in found if not ended(text, ends)]
    shortest = min(ends, key=len)
    assert shortest in found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(ENDS), min_size=1, max_size=3, unique=True),
    st.sampled_from(["<", "c", "cc", "c<"]),
)
@example(["c#"], "cc")
def test_what_a_text_excludes_may_stand_in_its_ends(ends: list[str], excluded: str) -> None:
    """Nothing goes on with the beginning of such an end but the end, and no automaton fails."""
    content = {"type": "any_text", "excludes": [excluded]}
    found = answers({"begin": "", "content": content, "end": list(map(spelled, ends))})
    for text in found:
        rests = [text.removesuffix(end) for end in ends if text.endswith(end)]
        assert any(excluded not in rest for rest in rests)
    assert "cc#" in found or (ends, excluded) != (["c#"], "cc")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(ENDS), min_size=2, max_size=3, unique=True),
    st.sampled_from(["c?", "[^c]*", "(<c)*", "<?", "c+"]),
)
def test_text_with_a_pattern_does_not_end_later(ends: list[str], pattern: str) -> None:
    content = {"type": "any_text", "patterns": [pattern]}
    tag = {"begin": "", "content": content, "end": list(map(spelled, ends))}
    try:
        found = answers(tag)
    except GrammarError:  # where no text at all can be in front of them
        return
    for text in found:
        assert ended(text, ends)
        assert any(
            text.endswith(end) and re.fullmatch(pattern, text.removesuffix(end)) for end in ends
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ENDS), min_size=2, max_size=3, unique=True))
def test_text_goes_up_to_the_first_of_several_triggers(triggers: list[str]) -> None:
    if any(one != other and one.startswith(other) for one in triggers for other in triggers):
        return  # what begins with the longer one begins with the other, too
    nothing = {"type": "const_string", "value": ""}
    begins = list(map(spelled, triggers))
    tags = [{"begin": begin, "content": nothing, "end": ""} for begin in begins]
    node = {"type": "triggered_tags", "triggers": begins, "tags": tags, "stop_after_first": True}
    found = answers(node)
    free = {text for text in found if MARK not in text and not any(one in text for one in triggers)}
    assert "" in free and not [text for text in found - free if not ended(text, triggers)]
    assert min(triggers, key=len) in found


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        (["a", "ab"], {"a": [], "ab": []}),  # the lexer knows
        (["#a", "#"], {"#": []}),
        (["x#", "#a"], {"x#": [], "#a": ["x"]}),
        (["x#", "yx"], {"x#": ["yx"], "yx": []}),
        (["x#", "yx#"], {"x#": [], "yx#": []}),
        (["x#a", "yx#"], {"x#a": ["yx"], "yx#": []}),
        (["ax#", "x"], {"x": []}),
        (["a#b#c", "#b"], {"#b": []}),
        (["a#", "b"], {"a#": [], "b": []}),
        (["#", "b"], {"#": ["b"], "b": []}),
        ([spelled(MARK)[:3], "#"], {spelled(MARK)[:3]: [], "#": [spelled(MARK)[:3]]}),
    ],
)
def test_ends_that_are_never_first_are_left_out(
    ends: list[str], first: dict[str, list[str]]
) -> None:
    special = SpecialWords(VOCABULARY.special_texts)
    expected = {spelled(end): others for end, others in first.items()}
    assert first_ends(list(map(spelled, ends)), special) == expected
