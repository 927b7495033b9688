"""From OpenAI's fields to prompts: names, defaults, model check, what is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from vivace.frontend.constraints import GIVEN
from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import refuse_unsupported
from vivace.frontend.validation import SAMPLING_FIELDS
from vivace.protocol.constraints import CONSTRAINTS, Constraint
from vivace.requests.prompts import cache_key, share
from vivace.requests.schema import NO_LORA
from vivace.server.context import Context
from vivace.server.http_metrics import UNSERVED_MODEL
from vivace.server.openai.schema import DEFAULT_MODEL, REFUSED, SamplingFields
from vivace.server.responses import HTTPError

log = logging.getLogger("vivace.server")

MAX_LOGPROBS = 20

RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""SGLang's name -> OpenAI's name."""

SAMPLING = {
    name: RENAMED.get(name, name)
    for name in SAMPLING_FIELDS
    if name not in ("max_new_tokens", "stream_interval", *CONSTRAINTS)
}
"""SGLang's name -> the field of a body that says it; both bodies have these."""


class RidField(Protocol):
    """What every body of this API says of ids."""

    rid: str | list[str] | None


def check_request(context: Context, request: SamplingFields) -> None:
    """Refuse unknown models, features this server does not have, and settings that contradict."""
    check_model(context, request.model)
    refuse_unsupported(request, REFUSED)
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options", "is only allowed when stream is true")
    if request.n is not None and request.n < 1:
        raise BadRequest("n", "must be at least 1")


def check_model(context: Context, model: str) -> None:
    """Let any name through, as SGLang does, and count those that are not served.

    404 with --strict-model-name; 400 for `served-name:adapter`, which asks for an adapter.
    """
    if is_served(context, model):
        return
    if context.settings.strict_model_name:
        raise not_found(context, model)
    for base in (DEFAULT_MODEL, context.served.name, context.served.path):
        adapter = model.removeprefix(f"{base}:") if base else model
        if adapter not in ("", model):
            raise BadRequest(
                "model",
                f"{base[:100]!r} with the adapter {adapter[:100]!r} is asked for: {NO_LORA}",
            )
    context.http_metrics.note(UNSERVED_MODEL)
    log.debug("the model %r is not served; %r answers", model[:200], context.served.name)


def is_served(context: Context, model: str) -> bool:
    """By name or path; "default" is whatever is served."""
    return model in ("", DEFAULT_MODEL, context.served.name, context.served.path)


def not_found(context: Context, model: str) -> HTTPError:
    return HTTPError(
        404,
        f"The model {model[:200]!r} does not exist; this server serves {context.served.name!r}",
        param="model",
        code="model_not_found",
    )


def raw_sampling(
    request: SamplingFields, max_new_tokens: int | None, constraint: Constraint | None
) -> dict[str, Any]:
    """SGLang's `sampling_params` of an OpenAI request; what was not said is left to the defaults.

    `max_new_tokens` None asks for all the room the context leaves; `constraint`: what the answer
    has to obey.
    """
    values = {name: getattr(request, field) for name, field in SAMPLING.items()}
    given = {name: value for name, value in values.items() if value is not None}
    if constraint is not None:
        given[GIVEN] = constraint
    return {"max_new_tokens": max_new_tokens, **given}


@contextmanager
def openai_names(limit: str = "max_tokens") -> Iterator[None]:
    """Errors raised inside name OpenAI's fields, not SGLang's; `limit`: that of max_new_tokens."""
    try:
        yield
    except BadRequest as error:
        field = error.field.removeprefix("sampling_params").lstrip(".")
        names = {**RENAMED, "max_new_tokens": limit}
        reason = error.reason.replace("max_new_tokens", limit)
        raise error.of_field(names.get(field, field), reason) from None


def request_id(request: RidField, index: int, count: int, fallback: str) -> str:
    """Id of the index-th of `count` prompts."""
    rid = request.rid
    if isinstance(rid, list):
        if len(rid) != count:
            raise BadRequest("rid", f"has {len(rid)} ids for {count} prompts")
        return rid[index]
    base = rid or fallback
    return base if count == 1 else f"{base}-{index}"


def prompt_cache_key(request: SamplingFields, index: int, count: int) -> str:
    """Prefix-cache key of the index-th prompt."""
    return cache_key(
        share("extra_key", request.extra_key, index, count),
        share("cache_salt", request.cache_salt, index, count),
    )
