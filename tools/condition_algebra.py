"""Conditions on the way to a rewrite, as data, and how they combine.

A condition is a list: [operator, field, value] with true, none, in, =, >, <, >= or <=;
[operator, conditions ...] with and, or, not; ["platform", name], ["arch", names] and
["arch has", text] about the model's first architecture; ["model", "mla" or "sparse"];
["?", text], an expression of the source that nothing of this decides.
"""

from __future__ import annotations

from typing import Any

Condition = list[Any]
TRUE: Condition = ["and"]
FALSE: Condition = ["or"]
LONGEST_TEXT = 110
"""characters of an expression that is kept as it is written"""
LARGEST = 32
"""parts of a condition; what has more is kept as text"""
PLATFORMS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in "npu cuda cpu hip xpu hpu musa mps sm90 sm100 sm120".split()},
    "cuda_alike": ("cuda", "hip", "musa"),
    "blackwell": ("sm100", "sm120"),
    "blackwell_supported": ("sm100", "sm120"),
    "hopper_with_cuda_12_3": ("sm90",),
    **{f"{name}_supported": (name,) for name in ("sm90", "sm100", "sm120")},
}
"""what a release asks with `is_...()` -> platforms, or generations of CUDA devices"""


def opaque(text: str) -> Condition:
    text = " ".join(text.split())
    return ["?", text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."]


def is_opaque(condition: Condition) -> bool:
    """Whether nothing of it can be decided."""
    if condition[0] in ("and", "or", "not"):
        return condition not in (TRUE, FALSE) and all(map(is_opaque, condition[1:]))
    return condition[0] == "?"


def has_opaque(condition: Condition) -> bool:
    if condition[0] in ("and", "or", "not"):
        return any(map(has_opaque, condition[1:]))
    return condition[0] == "?"


def size(condition: Condition) -> int:
    inner = condition[0] in ("and", "or", "not")
    return sum(map(size, condition[1:])) if inner else 1


def platform(text: str) -> Condition | None:
    """`is_npu()` and `get_platform().is_npu`; None if it asks for no platform."""
    asked = text.removesuffix("()").rpartition(".")[2]
    names = PLATFORMS.get(asked.removeprefix("is_")) if asked.startswith("is_") else None
    return None if names is None else any_of([["platform", name] for name in names])


def negated(condition: Condition) -> Condition:
    if condition[0] == "not":
        return condition[1]
    if condition[0] in ("and", "or"):
        word = "or" if condition[0] == "and" else "and"
        return simplified([word, *(negated(each) for each in condition[1:])])
    return ["not", condition]


def all_of(conditions: list[Condition]) -> Condition:
    return simplified(["and", *conditions])


def any_of(conditions: list[Condition]) -> Condition:
    return simplified(["or", *conditions])


def simplified(condition: Condition) -> Condition:
    """Without what can never matter."""
    word, *parts = condition
    decisive, idle = (FALSE, TRUE) if word == "and" else (TRUE, FALSE)
    inner: list[Condition] = []
    for part in parts:
        found = part[1:] if part[0] == word else [part]
        inner += [each for each in found if each not in (idle, *inner)]
    inner = absorbed(inner, decisive[0])
    if decisive in inner or any(["not", each] in inner for each in inner):
        return decisive
    return inner[0] if len(inner) == 1 else [word, *inner]


def absorbed(inner: list[Condition], other: str) -> list[Condition]:
    """Members of a conjunction (`other` is "or") or disjunction ("and"): a or (a and b) is a, and
    a or (not a and b) is a or b."""
    found: list[Condition] = []
    for part in inner:
        if part[0] == other:
            members = [each for each in part[1:] if opposite(each) not in inner]
            if any(each in inner for each in members):
                continue
            part = members[0] if len(members) == 1 else [other, *members]
        found.append(part)
    return found


def opposite(condition: Condition) -> Condition:
    return condition[1] if condition[0] == "not" else ["not", condition]


def flat(condition: Condition) -> list[Condition]:
    return condition[1:] if condition[0] == "and" else [condition]
