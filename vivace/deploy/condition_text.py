"""Conditions of a rewrite at start-up, as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vivace.deploy.startup import Condition

LONGEST = 240
"""characters of one reason"""
NAMED = 3
"""architectures that are named, of many"""
OPPOSITE = {"none": "set", "true": "off"}
COMPARED = {"=": "is", ">": "is above", "<": "is below", ">=": "is at least", "<=": "is at most"}


def reason(conditions: Sequence[Condition], flags: Mapping[str, str]) -> str:
    """Why it may be; what the source asks positively comes first. `flags` of arguments."""
    parts = sorted(conditions, key=lambda each: each[0] == "not")
    text = " and ".join(condition_text(each, flags) for each in parts)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def condition_text(condition: Condition, flags: Mapping[str, str]) -> str:
    word, *parts = condition
    if word in ("and", "or"):
        inner = f" {word} ".join(condition_text(each, flags) for each in parts)
        return f"({inner})"
    if word == "not":
        return negated(parts[0], flags)
    if word == "?":
        return f"`{parts[0]}`"
    if word == "platform":
        return f"on {parts[0]}"
    if word == "arch":
        more = f" or {count(len(parts[0]) - NAMED, 'other')}" if len(parts[0]) > NAMED else ""
        return f"the model is {', '.join(parts[0][:NAMED])}{more}"
    if word == "arch has":
        return f"the model is a {parts[0]}"
    if word == "model":
        return f"the model's attention is {'latent' if parts[0] == 'mla' else parts[0]}"
    flag = flags.get(parts[0], parts[0])
    if word in ("true", "none"):
        return f"{flag} is {'on' if word == 'true' else 'unset'}"
    if word == "in":
        return f"{flag} is one of {', '.join('unset' if x is None else str(x) for x in parts[1])}"
    return f"{flag} {COMPARED[word]} {parts[1]}"


def negated(condition: Condition, flags: Mapping[str, str]) -> str:
    word, *parts = condition
    if word in OPPOSITE:
        return f"{flags.get(parts[0], parts[0])} is {OPPOSITE[word]}"
    text = condition_text(condition, flags)
    if word in ("and", "or", "not", "?", "platform"):
        return f"not {text}"
    return text.replace(" is ", " is not ", 1)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
