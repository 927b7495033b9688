"""What a call of `vivace.Engine` with a keyword that its method does not have is told: where the
setting belongs, and what it is called there."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction, signature
from types import FunctionType
from typing import Any, TypeVar, get_args, get_type_hints

from vivace.errors import nearest
from vivace.frontend.validation import OTHER_NAMES, SAMPLING_FIELDS
from vivace.offline.prompts import OPTIONS

ARGUMENTS = {
    "text": "prompt",
    "prompts": "prompt",
    "inputs": "prompt",
    "prompt_token_ids": "input_ids",
    "conversation": "messages",
    "logprobs": "return_logprob",
    "top_logprobs": "top_logprobs_num",
    "request_id": "rid",
    "labels": "label_token_ids",
}
"""What OpenAI, vLLM, transformers or POST /generate call an argument -> its name here."""
MAX_SHOWN = 60
"""characters of a value that an error repeats"""

C = TypeVar("C", bound=type)


def check_keywords(kind: C) -> C:
    """The class, with TypeErrors of its public methods that say what to write instead."""
    methods = {
        name: method
        for name, method in vars(kind).items()
        if isinstance(method, FunctionType) and not name.startswith("_")
    }
    keywords = {name: method_keywords(method) for name, method in methods.items()}
    for name, method in methods.items():
        if "_" not in keywords[name]:
            setattr(kind, name, checked(method, keywords))
    return kind


def method_keywords(method: FunctionType) -> list[str]:
    """In the order of the signature; `**options` are those of a TypedDict."""
    names = [name for name in signature(method).parameters if name not in ("self", "options")]
    found = get_type_hints(method).get("options")
    return names if found is None else [*names, *get_args(found)[0].__annotations__]


def checked(method: FunctionType, keywords: dict[str, list[str]]) -> Callable[..., Any]:
    name, known = method.__name__, keywords[method.__name__]
    refused_later = OPTIONS if "stream" in known else frozenset()

    def check(given: dict[str, Any]) -> None:
        unknown = {key: given[key] for key in given if key not in {*known, *refused_later}}
        if unknown:
            listed = ", ".join(map(repr, unknown))
            raise TypeError(f"{name}() has no argument {listed}; {remedy(unknown, name, keywords)}")

    @wraps(method)
    def call(*arguments: Any, **given: Any) -> Any:
        check(given)
        return method(*arguments, **given)

    @wraps(method)
    async def call_async(*arguments: Any, **given: Any) -> Any:
        check(given)
        return await method(*arguments, **given)

    return call_async if iscoroutinefunction(method) else call


def remedy(unknown: dict[str, Any], method: str, keywords: dict[str, list[str]]) -> str:
    """What to write instead of all those that stand for a setting of sampling, or of the first."""
    known = keywords[method]
    settings = {OTHER_NAMES.get(name, name): value for name, value in unknown.items()}
    sampling = {name: settings[name] for name in settings if name in SAMPLING_FIELDS}
    if sampling and "sampling_params" in known:
        return f"write sampling_params={shown(sampling)}"
    name, value = next(iter(unknown.items()))
    argument = ARGUMENTS.get(name, name)
    if argument in known:
        return f"write {argument}={shown(value)}"
    if close := nearest(name, known):
        return close.removeprefix("; ")
    if "sampling_params" in known and (close := nearest(name, SAMPLING_FIELDS)):
        return close.removeprefix("; ") + " It belongs into the dict sampling_params"
    for other, names in keywords.items():
        if argument in names:
            return f"{other}() has one that is called {argument!r}"
    return f"it takes {', '.join(keywords[method]) or 'none'}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else "..."
