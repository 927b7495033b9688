"""Chat messages -> prompt text, through the model's Jinja template in a sandbox.

Templates come from the operator only (model files, flags), never from a request; requests bring
messages, tools and a few extra variables. The environment equals the one that model authors test
with: trimmed blocks, loop controls, `raise_exception`, `strftime_now`, plain `tojson`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from vivace.errors import CannotStart
from vivace.frontend.builtin_templates import BUILTIN_TEMPLATES
from vivace.frontend.errors import BadRequest

MAX_OUTPUT_CHARS = 16 << 20
_MAX_TEMPLATE_CHARS = 1 << 20
_RESERVED = frozenset(
    "messages tools documents add_generation_prompt raise_exception strftime_now "
    "bos_token eos_token unk_token pad_token range dict lipsum cycler joiner namespace".split()
)


class ChatTemplateError(CannotStart):
    """A template of the operator that cannot be used; raised at start-up."""


@dataclass(frozen=True, kw_only=True)
class TemplateSet:
    """What a model brings: templates by name and the special tokens they may write."""

    sources: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)


class ChatTemplate:
    """Compiled template(s) of one model; stateless, safe to share between threads.

    `content_format` is "parts" when the template walks over content lists itself, else "text":
    then content lists of text parts are joined with a space first.
    """

    def __init__(self, templates: TemplateSet, name: str = "default") -> None:
        sources = templates.sources
        if name not in sources:
            known = ", ".join(sorted(sources)) or "none"
            raise ChatTemplateError(
                f"the model has no chat template named {name!r}; known: {known}"
            )
        environment = _environment()
        self._plain = _compiled(environment, sources[name])
        with_tools = sources.get("tool_use") if name == "default" else None
        self._with_tools = _compiled(environment, with_tools) if with_tools else self._plain
        self._special_tokens = {"bos_token": "", "eos_token": "", **templates.special_tokens}
        self.source = sources[name]
        self.content_format = "parts" if _walks_content(environment, sources[name]) else "text"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages`. Raises BadRequest for what the template cannot take.

        `continue_final_message`: the last message is the beginning of the answer. `kwargs` are
        extra template variables (chat_template_kwargs); they cannot replace the standard ones.
        """
        _refuse_reserved(kwargs)
        shaped = [self._shaped(message, place) for place, message in enumerate(messages)]
        beginning = ""
        if continue_final_message:
            beginning, shaped = _split_beginning(shaped)
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": shaped,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt or continue_final_message,
        }
        return _run(self._with_tools if tools else self._plain, variables) + beginning

    def _shaped(self, message: Mapping[str, Any], place: int) -> dict[str, Any]:
        shaped = dict(message)
        content = shaped.get("content")
        if content is None:
            shaped["content"] = ""
        elif isinstance(content, list):
            texts = [_part_text(part, f"messages[{place}].content") for part in content]
            if self.content_format == "text":
                shaped["content"] = " ".join(texts)
            else:
                shaped["content"] = [{"type": "text", "text": text} for text in texts]
        return shaped


def own_template(
    choice: str | None, templates: TemplateSet, name: str | None
) -> ChatTemplate | None:
    """The template to use: `--chat-template` (a file or a built-in name), else the model's."""
    if choice is not None:
        source = {"default": _chosen(choice)}
        return ChatTemplate(TemplateSet(sources=source, special_tokens=templates.special_tokens))
    if name is not None:
        return ChatTemplate(templates, name)
    if not templates.sources:
        return None
    return ChatTemplate(
        templates, "default" if "default" in templates.sources else min(templates.sources)
    )


def _chosen(choice: str) -> str:
    if choice in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[choice]
    file = Path(choice)
    if not file.is_file():
        raise ChatTemplateError(
            f"--chat-template {choice}: neither a file nor a built-in template "
            f"({', '.join(BUILTIN_TEMPLATES)})"
        )
    if file.stat().st_size > 4 * _MAX_TEMPLATE_CHARS:
        raise ChatTemplateError(f"--chat-template {choice}: the file is too large for a template")
    text = file.read_text("utf-8")
    if file.suffix != ".json":
        return text
    try:
        return str(json.loads(text)["chat_template"])
    except (ValueError, KeyError, TypeError) as error:
        raise ChatTemplateError(
            f"--chat-template {choice}: a JSON file needs the key 'chat_template' with Jinja text"
        ) from error


# -- the sandbox ---------------------------------------------------------------------------------


class _Environment(ImmutableSandboxedEnvironment):
    """Also bounds the operators by which a few characters of template become gigabytes."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for one, other in ((left, right), (right, left)):
            repeats = isinstance(one, str | list | tuple) and isinstance(other, int)
            if repeats and len(one) * other > MAX_OUTPUT_CHARS:
                raise SecurityError("the template repeats a value too often")
        if operator == "**" and isinstance(right, int | float) and abs(right) > 64:
            raise SecurityError("the template raises a number to too high a power")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the model's own words for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _compiled(environment: _Environment, source: str) -> jinja2.Template:
    if len(source) > _MAX_TEMPLATE_CHARS:
        raise ChatTemplateError(f"chat template of {len(source)} characters is too large")
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"chat template does not compile: {error}") from error


def _run(template: jinja2.Template, variables: dict[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    try:
        for part in template.generate(**variables):
            size += len(part)
            if size > MAX_OUTPUT_CHARS:
                raise BadRequest("messages", f"the prompt exceeds {MAX_OUTPUT_CHARS} characters")
            parts.append(part)
    except (jinja2.TemplateError, ArithmeticError, LookupError) as error:
        raise BadRequest("messages", f"the chat template refuses them: {error}") from error
    except (TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise BadRequest(
            "messages", f"the chat template cannot render them: {error or type(error).__name__}"
        ) from error
    return "".join(parts)


# -- content -------------------------------------------------------------------------------------


def _refuse_reserved(kwargs: Mapping[str, Any]) -> None:
    taken = sorted(_RESERVED.intersection(kwargs))
    if taken:
        raise BadRequest("chat_template_kwargs", f"may not set {', '.join(taken)}")


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise BadRequest(where, f"this model reads text only; got a part of type {kind!r}")


def _split_beginning(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    if not messages or messages[-1].get("role") != "assistant":
        raise BadRequest("continue_final_message", "the last message must be of role 'assistant'")
    content = messages[-1]["content"]
    if isinstance(content, list):
        content = " ".join(part["text"] for part in content)
    return content, messages[:-1]


def _walks_content(environment: _Environment, source: str) -> bool:
    """Does the template loop over a message's content as a list of parts?"""
    tree = environment.parse(source)
    aliases = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, frozenset()):
            aliases.add(assignment.target.name)
    known = frozenset(aliases)
    return any(_is_content(loop.iter, known) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, aliases: frozenset[str]) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test) and node.node is not None:
        return _is_content(node.node, aliases)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Const):
            return node.arg.value == "content"
        return isinstance(node.arg, nodes.Slice) and _is_content(node.node, aliases)
    return isinstance(node, nodes.Name) and node.name in aliases
