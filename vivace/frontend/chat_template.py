"""Chat templates by name, for models that bring none (`--chat-template NAME`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from vivace.checkpoint.fields import abbreviate
from vivace.frontend.errors import BadRequest, ChatTemplateError, OverLimit
from vivace.frontend.fields import NO_TEXT, refuse_part
from vivace.frontend.renderer import Renderer

log = logging.getLogger(__name__)
SHOWS_NOTHING = (
    "%s: the chat template shows the model no message: of every conversation it makes %s. Give "
    "another with --chat-template FILE"
)
REFUSES = (
    "%s: the chat template refuses every conversation that was tried, as it may refuse every "
    "request (%s). Give another with --chat-template FILE"
)
_SYSTEM, _USER, _ASSISTANT = (
    {"role": role, "content": content}
    for role, content in (("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"))
)
_TRIED = ([_USER], [_SYSTEM, _USER], [_USER, _ASSISTANT, _USER])
"""conversations; some templates want a system message, or an earlier answer"""
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {}},
    },
}

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_QWEN = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}" + _CHATML
)
_SPLIT_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}"
    "{% endif %}"
)
_LLAMA2 = (
    _SPLIT_SYSTEM + "{% for message in turns %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' }}"
    "{% if loop.first and system %}{{ '<<SYS>>\n' + system + '\n<</SYS>>\n\n' }}{% endif %}"
    "{{ message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}" + _SPLIT_SYSTEM + "{% for message in turns %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role'])"
    " + '\n' }}{% if loop.first and system %}{{ system + '\n\n' }}{% endif %}"
    "{{ message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}" + _SPLIT_SYSTEM + "{% for message in turns %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' }}"
    "{% if loop.last and system %}{{ system + '\n\n' }}{% endif %}"
    "{{ message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
_ZEPHYR = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content']"
    " + eos_token + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
    "{% endif %}"
)
_PHI3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content']"
    " + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_VICUNA = (
    _SPLIT_SYSTEM + "{% if system %}{{ system + '\n\n' }}{% endif %}{% for message in turns %}"
    "{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}"
    "{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)

BUILTIN_TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "qwen": _QWEN,
    "llama-2": _LLAMA2,
    "llama-3": _LLAMA3,
    "llama-3-instruct": _LLAMA3,
    "gemma": _GEMMA,
    "gemma-it": _GEMMA,
    "mistral": _MISTRAL,
    "zephyr": _ZEPHYR,
    "phi-3": _PHI3,
    "vicuna": _VICUNA,
}


MAX_VARIABLES = 64
MAX_VARIABLE_BYTES = 64 << 10
"""of all chat_template_kwargs together, as JSON"""
_MAX_TEMPLATE_CHARS = 1 << 20
_RESERVED = frozenset(
    "messages tools documents add_generation_prompt raise_exception strftime_now "
    "bos_token eos_token unk_token pad_token range dict lipsum cycler joiner namespace".split()
)


@dataclass(frozen=True, kw_only=True)
class TemplateSet:
    """What a model brings: templates by name and the special tokens they may write. `places`: the
    file and key of each template, or the flag that named it."""

    sources: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)


class RenderOptions(TypedDict, total=False):
    """Settings of one rendering."""

    add_generation_prompt: bool
    """True unless said otherwise"""
    tools: Sequence[Any] | None
    continue_final_message: bool
    """the last message is the beginning of the answer"""
    variables: Mapping[str, Any] | None
    """further template variables (chat_template_kwargs); they cannot replace the standard ones"""


class ChatTemplate:
    """The template(s) of one model. `renderer`: one that has loaded nothing yet.

    `content_format` is "parts" when the template walks over content lists itself, else "text":
    then content lists of text parts are joined with a space first.
    """

    def __init__(
        self, templates: TemplateSet, name: str = "default", renderer: Renderer | None = None
    ) -> None:
        sources = templates.sources
        if name not in sources:
            known = ", ".join(sorted(sources)) or "none"
            raise ChatTemplateError(
                f"the model has no chat template named {name!r}; known: {known}"
            )
        self.source = sources[name]
        """of conversations without tools"""
        self._places = templates.places
        self._plain = name
        self._with_tools = "tool_use" if name == "default" and sources.get("tool_use") else name
        self._special_tokens = {"bos_token": "", "eos_token": "", **templates.special_tokens}
        self._renderer = renderer or Renderer()
        used = {name: sources[name] for name in (self._plain, self._with_tools)}
        self.texts = tuple(used.values())
        self.content_format = "parts" if name in self._load(used) else "text"
        self._try_out()

    def render(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[RenderOptions]
    ) -> str:
        """The prompt for `messages`. Raises BadRequest for what the template cannot take."""
        name, variables, beginning = self._prepare(messages, options)
        return self._renderer.render(name, variables) + beginning

    async def render_async(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[RenderOptions]
    ) -> str:
        """The same on an asyncio loop, which goes on meanwhile."""
        name, variables, beginning = self._prepare(messages, options)
        return await self._renderer.render_async(name, variables) + beginning

    def close(self) -> None:
        self._renderer.close()

    def _load(self, sources: Mapping[str, str]) -> list[str]:
        """Names of the templates that walk over content; ChatTemplateError for unusable ones."""
        for name, source in sources.items():
            if len(source) > _MAX_TEMPLATE_CHARS:
                raise self._unusable(name, f"the chat template has {len(source)} characters")
        try:
            return self._renderer.load(sources)
        except BadRequest as error:
            name = error.field if error.field in sources else self._plain
            raise self._unusable(name, error.reason) from error

    def _unusable(self, name: str, reason: str) -> ChatTemplateError:
        return ChatTemplateError(
            f"{self._place(name)}: {reason}. Give another with --chat-template FILE"
        )

    def _place(self, name: str) -> str:
        return self._places.get(name, f"chat template {name}")

    def _try_out(self) -> None:
        """A template that is over the limits for two words is over them for every conversation. One
        that takes none gets a warning, and so does one that shows none of them (some files have a
        template's name there)."""
        for tools in (None, [_TOOL]) if self._with_tools != self._plain else (None,):
            name = self._with_tools if tools else self._plain
            try:
                text = self._first_taken(tools)
            except OverLimit as error:
                reason = f"{error.reason}, for a conversation of a few letters"
                raise self._unusable(name, reason) from error
            except BadRequest as error:
                log.warning(REFUSES, self._place(name), abbreviate(error.reason))
            else:
                if tools is None and "hi" not in text.lower():
                    log.warning(SHOWS_NOTHING, self._place(name), abbreviate(text))

    def _first_taken(self, tools: Sequence[Any] | None) -> str:
        """Of the conversations that are tried. Raises BadRequest when none is taken."""
        *others, last = _TRIED
        for messages in others:
            try:
                return self.render(messages, tools=tools)
            except OverLimit:
                raise
            except BadRequest:
                pass
        return self.render(last, tools=tools)

    def _prepare(
        self, messages: Sequence[Mapping[str, Any]], options: RenderOptions
    ) -> tuple[str, dict[str, Any], str]:
        """(name of the template, its variables, the beginning of the answer)"""
        normalized = [self._normalize(message, place) for place, message in enumerate(messages)]
        beginning = ""
        continues = options.get("continue_final_message", False)
        if continues:
            beginning, normalized = _split_beginning(normalized)
        extra, tools = options.get("variables") or {}, options.get("tools") or None
        _check_extra(extra)
        variables = {
            **self._special_tokens,
            **extra,
            "messages": normalized,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": options.get("add_generation_prompt", True) or continues,
        }
        return self._with_tools if tools else self._plain, variables, beginning

    def _normalize(self, message: Mapping[str, Any], place: int) -> dict[str, Any]:
        normalized = dict(message)
        content = normalized.get("content")
        if content is None:
            normalized["content"] = ""
        elif isinstance(content, list):
            field = f"messages[{place}].content"
            texts = [_part_text(part, f"{field}[{at}]") for at, part in enumerate(content)]
            if self.content_format == "text":
                normalized["content"] = " ".join(texts)
            else:
                normalized["content"] = [{"type": "text", "text": text} for text in texts]
        return normalized


def own_template(
    choice: str | None,
    templates: TemplateSet,
    name: str | None,
    renderer: Renderer | None = None,
) -> ChatTemplate | None:
    """The template to use: `--chat-template` (a file or a built-in name), else the model's."""
    if choice is not None:
        templates = TemplateSet(
            sources={"default": chosen_source(choice)},
            places={"default": f"--chat-template {choice}"},
            special_tokens=templates.special_tokens,
        )
        return ChatTemplate(templates, renderer=renderer)
    if name is None:
        if not templates.sources:
            return None
        name = "default" if "default" in templates.sources else min(templates.sources)
    return ChatTemplate(templates, name, renderer)


def chosen_source(choice: str) -> str:
    """The text behind `--chat-template`. Raises ChatTemplateError, OSError, UnicodeDecodeError."""
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


# -- content -------------------------------------------------------------------------------------


def _check_extra(extra: Mapping[str, Any]) -> None:
    """chat_template_kwargs are a few small settings; everything else has a field of its own."""
    field = "chat_template_kwargs"
    if not isinstance(extra, Mapping):  # offline nobody has looked yet
        raise BadRequest(field, "must be an object")
    taken = sorted(_RESERVED.intersection(extra))
    if taken:
        raise BadRequest(field, f"may not set {', '.join(taken)}")
    if len(extra) > MAX_VARIABLES:
        raise BadRequest(field, f"has {len(extra)} entries; at most {MAX_VARIABLES} are allowed")
    try:
        size = len(msgspec.json.encode(dict(extra))) if extra else 0
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise BadRequest(field, f"has no form in JSON: {error}") from error
    if size > MAX_VARIABLE_BYTES:
        raise BadRequest(field, f"takes {size} bytes; at most {MAX_VARIABLE_BYTES} are allowed")


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind == "text":
        raise BadRequest(f"{where}.text", NO_TEXT)
    raise refuse_part(str(kind), where)


def _split_beginning(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    if not messages or messages[-1].get("role") != "assistant":
        raise BadRequest("continue_final_message", "the last message must be of role 'assistant'")
    content = messages[-1]["content"]
    if isinstance(content, list):
        content = " ".join(part["text"] for part in content)
    return content, messages[:-1]
