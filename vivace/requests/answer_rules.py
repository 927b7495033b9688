"""What one conversation says of its answers: what they obey, and how they are parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vivace.frontend.fairness import Work
from vivace.parsers.parser import ParseOptions
from vivace.protocol.constraints import JSON_SCHEMA, Constraint
from vivace.protocol.messages import FINISH_STOP, Finish
from vivace.requests.answer_syntax import AnswerSyntax
from vivace.requests.prompts import part_text
from vivace.requests.schema import Message
from vivace.requests.thinking import (
    ThinkingFields,
    behind_thinking,
    read_thinking_limit,
    thinking_ends,
    thinking_frame,
)
from vivace.requests.tool_constraints import ToolCalls
from vivace.requests.tools import OfferedTools


class AnswerFields(ThinkingFields, Protocol):
    """What decides it besides tools."""

    @property
    def messages(self) -> Sequence[Message]: ...

    parallel_tool_calls: bool | None
    continue_final_message: bool
    separate_reasoning: bool
    stream_reasoning: bool


@dataclass(frozen=True, kw_only=True)
class AnswerRules:
    """`syntax`: of these answers."""

    syntax: AnswerSyntax
    options: ParseOptions
    constraint: Constraint | None

    @property
    def parses(self) -> bool:
        """There is something to find in the answers."""
        return self.syntax.form.parses(self.options)

    @property
    def shown(self) -> frozenset[int]:
        """Special tokens that are in the text for the parser."""
        return self.syntax.shown_for_tools if self.options.tools else self.syntax.shown


def answer_rules(
    syntax: AnswerSyntax,
    params: AnswerFields,
    offered: OfferedTools,
    prompt: str,
    asked: Constraint | None,
) -> Work[AnswerRules]:
    """`prompt`: the rendered text; `asked`: what the content of an answer has to obey. Raises
    BadRequest."""
    parallel = params.parallel_tool_calls is not False
    beginning = ""
    if params.continue_final_message:
        beginning = yield from message_text(params.messages[-1])
    state = syntax.form.state(prompt, beginning)
    wanted = ToolCalls(offered=offered, form=syntax.form, parallel=parallel).syntax(asked)
    limit = read_thinking_limit(params)
    frame = thinking_frame(wanted.form.thinking, wanted.constraint)
    return AnswerRules(
        syntax=replace(syntax, form=wanted.form),
        options=ParseOptions(
            tools=offered.schemas,
            inputs=offered.inputs,
            separate_reasoning=params.separate_reasoning,
            stream_reasoning=params.stream_reasoning,
            state=state,
            forwarded=syntax.forwards_unknown,
            most_calls=1 if offered.single or not parallel else None,
            first_call=sum(len(message.tool_calls or ()) for message in params.messages),
            calls_only=bool(offered.required),
            calls_apart=asked is not None and asked.kind == JSON_SCHEMA,
            thinking_ends=thinking_ends(wanted.constraint, frame, state),
        ),
        constraint=behind_thinking(wanted.constraint, frame, limit, state),
    )


def message_text(message: Message) -> Work[str]:
    """All text of a message, as its prompt has it."""
    if isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for part in message.content or ():
        texts.append((yield from part_text(part, "content")))
    return "".join(texts)


def is_cut(finish: Finish | None) -> bool:
    """Whether an answer would have gone on."""
    return finish is not None and finish.type != FINISH_STOP
