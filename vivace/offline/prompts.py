"""The arguments of `Engine.generate` and `Engine.chat` -> prompts, by the rules of the server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict, get_type_hints

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import json_type, refuse_unsupported, validation_error
from vivace.frontend.frontend import Frontend
from vivace.frontend.validation import SAMPLING_FIELDS
from vivace.offline.schemas import with_schemas
from vivace.requests.embeddings import ENCODE_REFUSED, EncodeRequest, embedding_inputs
from vivace.requests.prompts import PromptInput, prompt_inputs
from vivace.requests.schema import HARMLESS, REFUSED, GenerateRequest


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `generate` besides the prompt; a list has one entry per prompt."""

    return_logprob: bool | list[bool] | None
    logprob_start_len: int | list[int] | None
    """first prompt position with log-probabilities; -1 = output only"""
    top_logprobs_num: int | list[int] | None
    token_ids_logprob: list[int] | list[list[int]] | None
    return_text_in_logprobs: bool
    stream: bool
    rid: str | list[str] | None
    priority: int | None
    routed_dp_rank: int | None
    """as SGLang has it; there is one engine, 0"""
    data_parallel_rank: int | None
    return_hidden_states: bool | list[bool]
    """with the flag enable_return_hidden_states"""
    extra_key: str | list[str] | None
    """prompts share cached prefixes only with prompts of the same key and salt"""
    cache_salt: str | list[str] | None


UNAVAILABLE = {
    "kv_router_hint": "there is no KV store beside the engine's own",
}
"""arguments of SGLang's Engine that no field of /generate stands for"""
LIMITS = ("max_thinking_tokens", "thinking_budget", "thinking_token_budget", "custom_params")
REFUSED_HERE = {**REFUSED, **dict.fromkeys(LIMITS, "a prompt is not parsed for thinking; use chat")}
_ALL_OPTIONS = frozenset((*GenerateOptions.__annotations__, *REFUSED_HERE, *UNAVAILABLE))
OPTIONS = _ALL_OPTIONS.difference(SAMPLING_FIELDS)
"""every keyword of `**options`, those that are refused with a reason included"""


CALL = msgspec.defstruct(
    "Call", [(name, kind, None) for name, kind in get_type_hints(GenerateRequest).items()]
)
"""The types of /generate, without the limits that hold for one HTTP request."""
ENCODE_CALL = msgspec.defstruct(
    "EncodeCall",
    [
        ("dimensions", int | None, None),
        ("rid", str | list[str] | None, None),
        ("priority", int | None, None),
    ],
)


def read_call(settings: Any, arguments: Mapping[str, Any]) -> GenerateRequest:
    """Everything but the prompts, checked. Arguments that do nothing here are refused, not ignored.

    `arguments`: of OPTIONS (`check_keywords`). Raises BadRequest.
    """
    for name in arguments.keys() & UNAVAILABLE.keys():
        if arguments[name]:
            raise BadRequest(name, UNAVAILABLE[name])
    fields = {name: value for name, value in arguments.items() if name not in UNAVAILABLE}
    fields["sampling_params"] = with_schemas(settings)
    convert(fields, CALL, "sampling_params")
    call = GenerateRequest(**fields)
    refuse_unsupported(call, REFUSED_HERE, HARMLESS)
    return call


def read_prompts(
    frontend: Frontend, call: GenerateRequest, prompt: Any, input_ids: Any
) -> tuple[list[PromptInput], bool]:
    """(the prompts with their settings, whether the caller gave a batch). Raises BadRequest."""
    with pythons_words():
        place, prompts, batch = _as_list(prompt, input_ids)
        if place == "prompt":
            prompts = _encode(frontend, prompts, batch)
        return list(prompt_inputs(call, prompts, batch, place)), batch


def read_encode_call(dimensions: Any, rid: Any, priority: Any, **refused: Any) -> EncodeRequest:
    """Everything of `Engine.encode` but the texts, checked. Raises BadRequest."""
    fields = {"dimensions": dimensions, "rid": rid, "priority": priority}
    convert(fields, ENCODE_CALL, "rid")
    params = EncodeRequest(**fields, **refused)
    refuse_unsupported(params, ENCODE_REFUSED)
    return params


def read_texts(
    frontend: Frontend, params: EncodeRequest, prompt: Any, input_ids: Any
) -> tuple[list[PromptInput], bool]:
    """(the texts that want vectors, whether the caller gave a batch). Raises BadRequest."""
    with pythons_words():
        place, prompts, batch = _as_list(prompt, input_ids)
        if place == "prompt":
            prompts = _encode(frontend, prompts, batch)
        return list(embedding_inputs(params, frontend.served, prompts, batch, place)), batch


def _as_list(prompt: Any, input_ids: Any) -> tuple[str, list[Any], bool]:
    """(argument, prompts, whether they came as a list)"""
    if (prompt is None) == (input_ids is None):
        raise BadRequest("prompt", "give either prompt or input_ids")
    if isinstance(prompt, str):
        return "prompt", [prompt], False
    if prompt is not None:
        if not isinstance(prompt, list) or not prompt:
            raise BadRequest(
                "prompt", f"must be a string or a list of them, not {json_type(prompt)}"
            )
        return "prompt", prompt, True
    if not isinstance(input_ids, list) or not input_ids:
        raise BadRequest("input_ids", "must be a list of token ids, or a list of such lists")
    batch = isinstance(input_ids[0], list)
    return "input_ids", input_ids if batch else [input_ids], batch


def _encode(frontend: Frontend, texts: list[Any], batch: bool) -> list[list[int]]:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadRequest(f"prompt[{index}]", f"must be text, not {json_type(text)}")
    if frontend.tokenizer is None:
        raise BadRequest("prompt", "skip_tokenizer_init is set; give input_ids")
    return frontend.tokenizer.encode_batch(texts)


def convert(value: Any, kind: Any, field: str) -> Any:
    """`value` as `kind`. Raises BadRequest, with `field` where it is not known which one."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        refused = validation_error(str(error))
        raise refused.of_field(refused.field, in_python(refused.reason)) from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:  # it is no data at all
        raise BadRequest(field, f"has no form in JSON: {error}") from None


PYTHON = {"object": "dict", "array": "list", "null": "None"}


@contextlib.contextmanager
def pythons_words() -> Iterator[None]:
    """What is refused in here says dict, list and None, not what JSON calls them."""
    try:
        yield
    except BadRequest as refused:
        raise refused.of_field(refused.field, in_python(refused.reason)) from None


def in_python(reason: str) -> str:
    """What is wrong with a value, with the names that Python has for types of JSON."""

    def expected(found: re.Match[str]) -> str:
        *others, last = (PYTHON.get(kind, kind) for kind in found["kinds"].split(" | "))
        kinds = f"{', '.join(others)} or {last}" if others else last
        return f"must be {kinds}, not {PYTHON.get(found['got'], found['got'])}"

    def named(found: re.Match[str]) -> str:
        verb, kind = found[1], found[0].split()[-1]
        return f"{verb} {'' if kind == 'null' else 'a '}{PYTHON[kind]}"

    reason = re.sub(r"Expected `(?P<kinds>[^`]+)`, got `(?P<got>[^`]+)`", expected, reason)
    return re.sub(r"\b(must be|not) (?:an object|an array|null)\b", named, reason)
