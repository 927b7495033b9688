"""How long a model may think, and what its answer obeys behind that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vivace.frontend.constraints import GIVEN, make_constraint
from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import is_set
from vivace.frontend.validation import NO_PROCESSORS
from vivace.grammar.thinking_rule import ThinkingRule, thinking_constraint
from vivace.parsers.answer import ThinkingFrame
from vivace.protocol.constraints import CONSTRAINTS, STRUCTURAL_TAG, Constraint
from vivace.requests.answer_syntax import AnswerSyntax
from vivace.requests.prompts import PromptInput

CHANNELS = re.compile(
    r'"(?:begin|value|grammar)"\s*:\s*"(?:[^"\\<]++|\\.|<(?!\|channel\|>))*+<\|channel\|>'
)
"""in a tag that begins messages itself, and not where it excludes them"""
BUDGET = "thinking_budget"
CUSTOM = "custom_params"
NO_FRAME = (
    "the server does not know where thinking ends: start it with --reasoning-parser, or leave the "
    "field out"
)
TAIL = 64
"""Tokens at the end of a prompt in which it is seen whether the answer begins with thinking."""


class ThinkingFields(Protocol):
    """How conversations say how long to think: as SGLang, vLLM and Qwen do."""

    max_thinking_tokens: int | None
    thinking_token_budget: int | None
    thinking_budget: int | None
    custom_params: Any

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True)
class ThinkingLimit:
    """Tokens; `field`: of the request."""

    tokens: int
    field: str


def read_thinking_limit(params: ThinkingFields) -> ThinkingLimit | None:
    """BadRequest for limits that contradict each other."""
    names = ("max_thinking_tokens", "thinking_token_budget", BUDGET)
    given = {name: getattr(params, name) for name in names}
    given[f"{CUSTOM}.{BUDGET}"] = read_custom_params(params.custom_params)
    if type(for_template := (params.chat_template_kwargs or {}).get(BUDGET)) is int:
        given[f"chat_template_kwargs.{BUDGET}"] = for_template
    found = [ThinkingLimit(tokens, name) for name, tokens in given.items() if tokens is not None]
    for limit in found:
        if limit.tokens < 0:
            raise BadRequest(limit.field, "must be at least 0")
        if limit.tokens != found[0].tokens:
            raise BadRequest(limit.field, f"is not what {found[0].field} says; give one of them")
    return found[0] if found else None


def limit_thinking(
    inputs: Iterable[PromptInput], tokens: int, syntax: AnswerSyntax
) -> Iterator[PromptInput]:
    """The same prompts, whose answers think no longer than that. What each has to obey begins
    behind the thinking. BadRequest."""
    limit = ThinkingLimit(tokens, "max_thinking_tokens")
    if tokens < 0:
        raise BadRequest(limit.field, "must be at least 0")
    if syntax.form.thinking is None:
        raise BadRequest(limit.field, NO_FRAME)
    for prompt in inputs:
        tail = b"".join(known_bytes(token, syntax) for token in prompt.tokens[-TAIL:])
        answer, rest = take_constraint(prompt.sampling or {}, prompt.sampling_field)
        inside = syntax.form.inside(tail.decode("utf-8", "replace"), "")
        constraint = behind_thinking(answer, syntax.form.thinking, limit, inside=inside)
        yield replace(prompt, sampling={**rest, GIVEN: constraint})


def known_bytes(token: Any, syntax: AnswerSyntax) -> bytes:
    """Those of a token; none of what is none, which is refused later."""
    if type(token) is not int or token < 0:
        return b""
    try:
        return syntax.token_bytes(token)
    except IndexError:
        return b""


def take_constraint(
    sampling: Mapping[str, Any], place: str
) -> tuple[Constraint | None, dict[str, Any]]:
    """(what the answer has to obey, the other settings). BadRequest."""
    named = [kind for kind in CONSTRAINTS if is_set(sampling.get(kind))]
    if len(named) > 1:
        raise BadRequest(f"{place}.{named[1]}", f"does not go with {named[0]}; give one of them")
    found = [make_constraint(kind, sampling[kind], f"{place}.{kind}") for kind in named]
    rest = {name: value for name, value in sampling.items() if name not in named}
    return found[0] if found else None, rest


def read_custom_params(given: Any) -> int | None:
    """What SGLang's logit processors for thinking are told; none has to be sent here."""
    if not is_set(given):
        return None
    if not isinstance(given, dict) or given.keys() != {BUDGET}:
        raise BadRequest(CUSTOM, f"only {BUDGET} is known: {NO_PROCESSORS}")
    if type(tokens := given[BUDGET]) is not int:
        raise BadRequest(f"{CUSTOM}.{BUDGET}", "must be a whole number")
    return tokens


def behind_thinking(
    answer: Constraint | None,
    frame: ThinkingFrame | None,
    limit: ThinkingLimit | None,
    *,
    inside: bool | None,
) -> Constraint | None:
    """`answer`: what it has to obey once the model has thought. `inside`: it begins in the middle
    of the thinking; None: behind it. BadRequest where a limit cannot be kept."""
    if frame is None and limit is not None:
        raise BadRequest(limit.field, NO_FRAME)
    asking = answer or limit
    if frame is None or asking is None or (inside is None and answer is not None):
        return answer
    framed = not answer or (answer.kind == STRUCTURAL_TAG and CHANNELS.search(answer.text))
    rule = ThinkingRule(
        begin=frame.begin,
        end=frame.end + ("" if framed else frame.final),
        inside=bool(inside),
        budget=None if limit is None else limit.tokens,
        avoided=() if answer is None else frame.interrupts,
        answer=answer,
    )
    return thinking_constraint(rule, asking.field)
