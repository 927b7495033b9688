"""How long a model may think, and what its answer obeys behind that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from vivace.frontend.constraints import GIVEN, make_constraint
from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import is_set
from vivace.frontend.validation import NO_PROCESSORS
from vivace.grammar.limits import MAX_CHARACTERS
from vivace.grammar.thinking_rule import ThinkingRule, thinking_constraint
from vivace.parsers.answer import ThinkingFrame, ThinkingState
from vivace.parsers.harmony import CHANNEL
from vivace.protocol.constraints import CONSTRAINTS, STRUCTURAL_TAG, Constraint
from vivace.requests.answer_syntax import AnswerSyntax
from vivace.requests.prompts import PromptInput

FRAMING = ("begin", "value", "grammar", "pattern")
SCHEMAS = ("schema", "json_schema")
"""of the formats of structural tags: texts that may frame messages, and what does not"""
BUDGET = "thinking_budget"
CUSTOM = "custom_params"
TEMPLATE = "chat_template_kwargs"
NO_FRAME = (
    "the server does not know where thinking ends: start it with --reasoning-parser, or leave the "
    "field out"
)
TAIL = 64
"""Tokens at the end of a prompt in which it is seen whether the answer begins with thinking."""


class ThinkingFields(Protocol):
    """How requests say how long to think: as SGLang, vLLM and Qwen do; `chat_template_kwargs`,
    which conversations have, may say it, too."""

    max_thinking_tokens: int | None
    thinking_token_budget: int | None
    thinking_budget: int | None
    custom_params: Any


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
    if type(for_template := (getattr(params, TEMPLATE, None) or {}).get(BUDGET)) is int:
        given[f"{TEMPLATE}.{BUDGET}"] = for_template
    found = [ThinkingLimit(tokens, name) for name, tokens in given.items() if tokens is not None]
    for limit in found:
        if limit.tokens < 0:
            raise BadRequest(limit.field, "must be at least 0")
        if limit.tokens != found[0].tokens:
            raise BadRequest(limit.field, f"is not what {found[0].field} says; give one of them")
    return found[0] if found else None


def limit_thinking(
    inputs: Iterable[PromptInput], limit: ThinkingLimit, syntax: AnswerSyntax
) -> Iterator[PromptInput]:
    """The same prompts, whose answers think no longer than that. What each has to obey begins
    behind the thinking. BadRequest."""
    if syntax.form.thinking is None:
        raise BadRequest(limit.field, NO_FRAME)
    for prompt in inputs:
        tail = b"".join(known_bytes(token, syntax) for token in prompt.tokens[-TAIL:])
        answer, rest = take_constraint(prompt.sampling or {}, prompt.sampling_field)
        state = syntax.form.state(tail.decode("utf-8", "replace"), "")
        frame = thinking_frame(syntax.form.thinking, answer)
        constraint = behind_thinking(answer, frame, limit, state)
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


def thinking_frame(frame: ThinkingFrame | None, answer: Constraint | None) -> ThinkingFrame | None:
    """What stands around the thinking in front of such an answer: what begins its message belongs
    to the end, unless the answer says that itself."""
    if frame is None or answer is None or not frame.final or begins_messages(answer):
        return frame
    return replace(frame, end=frame.end + frame.final, final="")


def thinking_ends(
    answer: Constraint | None, frame: ThinkingFrame | None, state: ThinkingState
) -> tuple[str, ...] | None:
    """See `ParseOptions`: what is thought for the constraint is for the parser."""
    if answer is None:
        return None
    return () if frame is None or state is ThinkingState.BEHIND else (frame.end,)


def behind_thinking(
    answer: Constraint | None,
    frame: ThinkingFrame | None,
    limit: ThinkingLimit | None,
    state: ThinkingState,
) -> Constraint | None:
    """`answer`: what it has to obey once the model has thought. `state`: where it begins.
    BadRequest where a limit cannot be kept."""
    if frame is None and limit is not None:
        raise BadRequest(limit.field, NO_FRAME)
    asking = answer or limit
    if frame is None or asking is None or (answer is not None and state is ThinkingState.BEHIND):
        return answer
    rule = ThinkingRule(
        begin=frame.begin,
        end=frame.end,
        inside=state is ThinkingState.INSIDE,
        budget=None if limit is None else limit.tokens,
        avoided=() if answer is None else frame.interrupts,
        answer=answer,
    )
    return thinking_constraint(rule, asking.field)


def begins_messages(constraint: Constraint) -> bool:
    """Whether it is a tag that frames gpt-oss's messages itself. Texts that it excludes are not
    looked at, nor are schemas; of what no tag can be is told where it is compiled."""
    if constraint.kind != STRUCTURAL_TAG or len(constraint.text) > MAX_CHARACTERS[STRUCTURAL_TAG]:
        return False
    try:
        stack = [msgspec.json.decode(constraint.text.encode("utf-8", "surrogatepass"))]
    except (msgspec.DecodeError, RecursionError):
        return False
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            framing = [node.get(key) for key in FRAMING]
            texts = [text.replace("\\", "") for text in framing if isinstance(text, str)]
            if any(CHANNEL in text for text in texts):  # as expressions write it, too
                return True
            formats = node.get("formats")  # of definitions, by names that clients choose
            named = [*formats.values()] if isinstance(formats, dict) else formats
            node = [named, *(node[key] for key in node if key not in (*SCHEMAS, "formats"))]
        stack += node if isinstance(node, list) else ()
    return False
