"""The arguments of `Engine.chat` -> prompts and rules; and the messages of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vivace.config.config import Config
from vivace.config.environment import switched_on
from vivace.frontend.chat_template import RenderOptions
from vivace.frontend.constraints import GIVEN
from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.frontend.frontend import Frontend
from vivace.frontend.tokenizer import Tokenizer
from vivace.offline.prompts import GenerateOptions, convert, read_call
from vivace.offline.schemas import AnswerType, answer_type
from vivace.parsers.events import ParsedAnswer, ParsedCall, gather
from vivace.parsers.parser import AnswerParser
from vivace.requests.answer_rules import AnswerRules, answer_rules
from vivace.requests.answer_syntax import AnswerSyntax, answer_syntax
from vivace.requests.prompts import template_messages
from vivace.requests.response_format import ResponseFormat, body_constraint
from vivace.requests.schema import GenerateRequest, Message
from vivace.requests.tools import OfferedTools, ToolChoice, ToolDefinition, offered_tools


class ChatOptions(GenerateOptions, total=False):
    """Keyword arguments of `chat` besides those of `generate`: /v1/chat/completions' fields."""

    tools: list[dict[str, Any]] | None
    tool_choice: str | dict[str, Any] | None
    parallel_tool_calls: bool | None
    response_format: Any
    """may be a class of pydantic or msgspec: an answer's `parsed` is one of these, or None where it
    was cut off"""
    max_thinking_tokens: int | None
    separate_reasoning: bool
    """with the flag reasoning_parser, as `reasoning_content` of the message"""
    add_generation_prompt: bool
    continue_final_message: bool
    """the last message is the beginning of the answer"""
    chat_template_kwargs: dict[str, Any] | None
    """further variables of the template"""


OWN = frozenset(ChatOptions.__annotations__) - frozenset(GenerateOptions.__annotations__)
FORWARD_UNKNOWN = "SGLANG_FORWARD_UNKNOWN_TOOLS"


class ChatCall(msgspec.Struct, kw_only=True):
    """A conversation with what is said of it, as /v1/chat/completions has it."""

    messages: list[Message] = []
    tools: list[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_thinking_tokens: int | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    custom_params: Any = None
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None


@dataclass(frozen=True)
class ChatPrompts:
    """One conversation, or each of a list: token ids, and how their answers are read. `call`: the
    rest; `kind`: what the content of answers becomes."""

    tokens: list[list[int]]
    rules: list[AnswerRules]
    call: GenerateRequest
    batch: bool
    kind: AnswerType | None

    @property
    def input_ids(self) -> list[int] | list[list[int]]:
        return self.tokens if self.batch else self.tokens[0]

    @property
    def shown(self) -> frozenset[int]:
        """Special tokens that the texts have for their parsers."""
        parsing = [rules.shown for rules in self.rules if rules.parses]
        return frozenset().union(*parsing)

    def fields(self, place: int, text: str, *, cut: bool) -> dict[str, Any]:
        """What a whole answer to the conversation at `place` has besides its text; `cut`: it would
        have gone on."""
        message = read_message(self.rules[place], text, cut=cut)
        found: dict[str, Any] = {"message": message}
        if self.kind is not None:
            found["parsed"] = self.kind.parse(message["content"])
        return found


def configured_syntax(config: Config, frontend: Frontend) -> AnswerSyntax:
    """What the flags tool_call_parser and reasoning_parser ask for."""
    return answer_syntax(
        frontend,
        config.http.tool_call_parser,
        config.http.reasoning_parser,
        forwards=switched_on(config.environment, FORWARD_UNKNOWN),
    )


def read_chat(
    frontend: Frontend,
    syntax: AnswerSyntax,
    messages: Any,
    settings: Any,
    options: Mapping[str, Any],
) -> ChatPrompts:
    """Everything checked, templates rendered. Raises BadRequest."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages", "must be a list of messages, or a list of such lists")
    batch = all(isinstance(entry, list) for entry in messages)
    conversations: list[Any] = messages if batch else [messages]
    kind = answer_type(options.get("response_format"))
    common = read_options(options, kind)
    tokens: list[list[int]] = []
    rules: list[AnswerRules] = []
    for conversation in conversations:
        call = msgspec.structs.replace(common, messages=read_messages(conversation))
        offered = offered_tools(call)
        text = render(frontend, call, offered)
        tokens.append(known_tokenizer(frontend).encode(text, add_special_tokens=False))
        asked = body_constraint(call)
        rules.append(run_now(answer_rules(syntax, call, offered, text, asked)))
    given = spread(settings, len(tokens), batch=batch)
    sampling = [with_constraint(one, each) for one, each in zip(given, rules, strict=True)]
    rest = {name: value for name, value in options.items() if name not in OWN}
    call = read_call(sampling if batch else sampling[0], rest)
    return ChatPrompts(tokens, rules, call, batch, kind)


def read_options(options: Mapping[str, Any], kind: AnswerType | None) -> ChatCall:
    """`kind`: of which the answers are to be. Raises BadRequest."""
    own = {name: value for name, value in options.items() if name in OWN}
    if kind is not None:
        own["response_format"] = kind.response_format()
    return convert(own, ChatCall, "tools")


def read_messages(conversation: Sequence[Any]) -> list[Message]:
    if not conversation:
        raise BadRequest("messages", "must not be empty")
    try:
        return convert(list(conversation), list[Message], "")
    except BadRequest as problem:
        raise BadRequest(f"messages{problem.field}", problem.reason) from None


def render(frontend: Frontend, call: ChatCall, offered: OfferedTools) -> str:
    tokenizer = known_tokenizer(frontend)
    if tokenizer.chat is None:
        reason = "the model has no chat template; use generate, or the flag chat_template"
        raise BadRequest("messages", reason)
    options = RenderOptions(
        add_generation_prompt=call.add_generation_prompt,
        continue_final_message=call.continue_final_message,
        variables=call.chat_template_kwargs,
    )
    if offered.described:
        options["tools"] = offered.described
    return tokenizer.chat.render(run_now(template_messages(call.messages)), **options)


def known_tokenizer(frontend: Frontend) -> Tokenizer:
    if frontend.tokenizer is None:
        raise BadRequest("messages", "skip_tokenizer_init is set; give input_ids to generate")
    return frontend.tokenizer


def spread(settings: Any, count: int, *, batch: bool) -> list[Any]:
    """Of each conversation. BadRequest for a list of another length."""
    if not isinstance(settings, list):
        return [settings] * count
    if not batch or len(settings) != count:
        reason = f"has {len(settings)} entries for {count} conversations"
        raise BadRequest("sampling_params", reason)
    return settings


def with_constraint(settings: Any, rules: AnswerRules) -> Any:
    """An absent `max_new_tokens` means the rest of the context, not generate's 128."""
    if settings is not None and not isinstance(settings, dict):
        return settings
    constraint = {} if rules.constraint is None else {GIVEN: rules.constraint}
    return {"max_new_tokens": None, **(settings or {}), **constraint}


def read_message(rules: AnswerRules, text: str, *, cut: bool) -> dict[str, Any]:
    """The message that an answer's text is, as /v1/chat/completions has it."""
    found = ParsedAnswer(reasoning="", text=text)
    if rules.parses:
        parser = AnswerParser(rules.syntax.form, rules.options)
        found = run_now(gather(run_now(parser.push_slices(text)) + parser.finish(cut=cut)))
    message: dict[str, Any] = {"role": "assistant", "content": found.content}
    if found.reasoning:
        message["reasoning_content"] = found.reasoning
    if found.calls:
        message["tool_calls"] = [as_call(call) for call in found.calls]
    return message


def as_call(call: ParsedCall) -> dict[str, Any]:
    kind, given = ("custom", "input") if call.custom else ("function", "arguments")
    return {"id": call.id, "type": kind, kind: {"name": call.name, given: call.arguments}}
