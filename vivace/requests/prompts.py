"""From the prompts or messages of one call to requests: one setting for all, or one each.

Free of HTTP: /generate, the OpenAI endpoints and the offline API share it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import NO_TEXT, abbreviate, json_type, refuse_part, refuse_unsupported
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import ServedModel
from vivace.frontend.validation import SamplingChecks, build_logprobs, check_prompt, samples
from vivace.parsers.inputs import INPUT
from vivace.parsers.json_values import whole_part
from vivace.protocol.messages import LogprobOptions, Request, SamplingParams
from vivace.protocol.tasks import GENERATE, HIDDEN, Task
from vivace.requests.input_files import read_file
from vivace.requests.json_scan import PART_BYTES, Scan
from vivace.requests.limits import DEPTH, VALUES
from vivace.requests.long_texts import decode_document
from vivace.requests.schema import (
    MESSAGE_REFUSED,
    ContentPart,
    CustomCall,
    FunctionCall,
    GenerateRequest,
    Message,
    ToolCall,
)

NO_STEPS = (
    "there is no token {}, behind which the served model judges a step; put it behind each step "
    '("<extra_0>" in texts for Qwen2.5-Math-PRM)'
)
NO_HIDDEN_STATES = (
    "this server was started without --enable-return-hidden-states; start it with that flag, or "
    "leave the field out"
)


@dataclass(frozen=True)
class WantedRank:
    """The engine that a request asks for, and by which field."""

    field: str
    rank: int

    def check(self, engines: int) -> None:
        if not 0 <= self.rank < engines:
            raise BadRequest(self.field, f"must be an engine, 0 to {engines - 1}")


@dataclass(frozen=True, kw_only=True)
class PromptInput:
    """One prompt and what is asked of it.

    `sampling` has SGLang's names; `logprobs` are keywords of `build_logprobs`; `sampling_field`
    and `prompt_field` say where in the request they stand, for error messages. `ends`: ids that end
    such an answer, whatever is asked.
    """

    tokens: list[int]
    sampling: Mapping[str, Any] | None
    sampling_field: str = "sampling_params"
    prompt_field: str = "prompt"
    rid: str | None = None
    logprobs: Mapping[str, Any] = field(default_factory=dict)
    priority: int | None = None
    dp_rank: WantedRank | None = None
    resumed: Sequence[int] = ()
    cache_key: str = ""
    log_metrics: bool = True
    task: Task = GENERATE
    ends: Sequence[int] = ()


def expand(
    frontend: Frontend,
    inputs: Iterable[PromptInput],
    *,
    limit: int,
    stream: bool,
    arrival: float,
    client: int = 0,
) -> Work[list[Request]]:
    """n requests per prompt, prompt by prompt; BadRequest when they are more than `limit`."""
    requests: list[Request] = []
    checks = SamplingChecks(frontend.served)
    for prompt in inputs:
        found = build_requests(
            frontend, prompt, checks, stream=stream, arrival=arrival, client=client
        )
        for request in found:
            requests.append(request)
            if len(requests) > limit:
                raise BadRequest("n", f"prompts times n must be at most {limit} in one request")
            yield
    if len({request.rid for request in requests}) < len(requests):
        raise BadRequest("rid", "every prompt of a batch needs an id of its own")
    return requests


def build_requests(
    frontend: Frontend,
    prompt: PromptInput,
    checks: SamplingChecks,
    *,
    stream: bool,
    arrival: float,
    client: int = 0,
) -> Iterator[Request]:
    """The n requests of one prompt."""
    served = frontend.served
    if prompt.dp_rank is not None:
        prompt.dp_rank.check(len(frontend.engines))
    if prompt.task == HIDDEN and not served.returns_hidden_states:
        raise BadRequest("return_hidden_states", NO_HIDDEN_STATES)
    room = 0 if (prompt.sampling or {}).get("max_new_tokens", 1) == 0 else 1
    tokens = check_prompt(prompt.tokens, served, field=prompt.prompt_field, room=room)
    if served.step_token is not None and served.step_token not in tokens:
        raise BadRequest(prompt.prompt_field, NO_STEPS.format(served.step_token))
    settings = checks.check(prompt.sampling, prompt.sampling_field)
    sampling, n = settings.behind(len(tokens)), settings.n
    if prompt.ends:
        ends = dict.fromkeys((*sampling.stop_token_ids, *prompt.ends))
        sampling = msgspec.structs.replace(sampling, stop_token_ids=tuple(ends))
    logprobs = build_logprobs(served, len(tokens), **prompt.logprobs) if prompt.logprobs else None
    if prompt.resumed:
        check_resumed(prompt, sampling, n, served, logprobs)
    for index, one in enumerate(samples(sampling, n)):
        yield frontend.checked_request(
            tokens,
            one,
            rid=prompt.rid if n == 1 or prompt.rid is None else f"{prompt.rid}-{index}",
            logprobs=logprobs,
            priority=prompt.priority,
            dp_rank=None if prompt.dp_rank is None else prompt.dp_rank.rank,
            resumed=prompt.resumed,
            cache_key=prompt.cache_key,
            log_metrics=prompt.log_metrics,
            stream=stream,
            client=client,
            arrival=arrival,
            task=prompt.task,
        )


def prompt_inputs(
    params: GenerateRequest, prompts: list[list[int]], batch: bool, place: str
) -> Iterator[PromptInput]:
    """Each prompt with its settings; `batch`: the prompts came as a list, in the field `place`."""
    count = len(prompts)
    for index, tokens in enumerate(prompts):
        yield prompt_input(params, tokens, index, count, f"{place}[{index}]" if batch else place)


def prompt_input(
    params: GenerateRequest, tokens: list[int], index: int, count: int, place: str
) -> PromptInput:
    """One prompt with its settings: its share of every per-prompt list."""

    def own(name: str) -> Any:
        return share(name, getattr(params, name), index, count)

    several = isinstance(params.sampling_params, list)
    return PromptInput(
        tokens=tokens,
        sampling=own("sampling_params"),
        sampling_field=f"sampling_params[{index}]" if several else "sampling_params",
        prompt_field=place,
        rid=own_rid(params.rid, index, count),
        logprobs={
            "return_logprob": own("return_logprob"),
            "logprob_start_len": own("logprob_start_len"),
            "top_logprobs_num": own("top_logprobs_num"),
            "token_ids_logprob": chosen_ids(params.token_ids_logprob, index, count),
        },
        priority=params.priority,
        dp_rank=wanted_rank(params),
        resumed=own_resumed(params, count),
        cache_key=cache_key(own("extra_key"), own("cache_salt")),
        log_metrics=params.log_metrics,
        task=HIDDEN if own("return_hidden_states") else GENERATE,
    )


def own_resumed(params: GenerateRequest, count: int) -> Sequence[int]:
    if params.resumed and count > 1:
        raise BadRequest("resumed", "goes on with one answer: send a single prompt")
    return params.resumed or ()


def check_resumed(
    prompt: PromptInput,
    sampling: SamplingParams,
    n: int,
    served: ServedModel,
    logprobs: LogprobOptions | None,
) -> None:
    """A draw depends on the seed and the position, so the answer goes on as it would have."""
    if n > 1:
        raise BadRequest("resumed", "goes on with one answer: n must be 1")
    if sampling.temperature > 0 and (prompt.sampling or {}).get("sampling_seed") is None:
        raise BadRequest("resumed", "draws depend on a seed: give sampling_params.sampling_seed")
    if len(prompt.resumed) > sampling.max_new_tokens:
        raise BadRequest("resumed", f"has more than max_new_tokens ({sampling.max_new_tokens})")
    if not all(0 <= token < served.vocabulary for token in prompt.resumed):
        raise BadRequest("resumed", f"token ids are 0 to {served.vocabulary - 1}")
    shortest = 0 if sampling.constraint else sampling.min_new_tokens
    ends = sampling.stop_token_ids + (() if sampling.ignore_eos else served.eos_ids)
    if any(token in ends for token in prompt.resumed[: max(len(prompt.resumed) - 1, shortest)]):
        raise BadRequest("resumed", "has a token that ends answers, before its last or too early")
    if logprobs is not None and logprobs.start >= 0:
        raise BadRequest("logprob_start_len", "the prompt was scored before: leave it out")


class RankedParams(Protocol):
    routed_dp_rank: int | None
    data_parallel_rank: int | None


def wanted_rank(params: RankedParams) -> WantedRank | None:
    """The engine that is asked for; `data_parallel_rank` is the older name."""
    for name in ("routed_dp_rank", "data_parallel_rank"):
        if (rank := getattr(params, name)) is not None:
            return WantedRank(name, rank)
    return None


def own_rid(rid: str | list[str] | None, index: int, count: int) -> str | None:
    """The id of one prompt of several."""
    own = share("rid", rid, index, count)
    return own if count == 1 or isinstance(rid, list) or own is None else f"{own}-{index}"


def share(name: str, value: Any, index: int, count: int) -> Any:
    """The index-th entry of a list with one entry per prompt, or the value all prompts share."""
    if not isinstance(value, list):
        return value
    if len(value) != count:
        raise BadRequest(name, f"has {len(value)} entries for {count} prompts")
    return value[index]


def chosen_ids(value: list[Any] | None, index: int, count: int) -> list[int] | None:
    """`token_ids_logprob`: one list of ids for all prompts, or one (or null) per prompt."""
    if value is None or all(isinstance(token, int) for token in value):
        return value
    own = share("token_ids_logprob", value, index, count)
    if own is not None and not isinstance(own, list):
        raise BadRequest("token_ids_logprob", "must be ids, or one list of ids per prompt")
    return own


def cache_key(extra_key: str | None, cache_salt: str | None) -> str:
    """One key of the two fields that isolate the prefix cache; different pairs never collide."""
    if not extra_key and not cache_salt:
        return ""
    salt = cache_salt or ""
    return f"{len(salt)}:{salt}{extra_key or ''}"


def new_id(prefix: str) -> str:
    """An id no other answer has, e.g. `chatcmpl-5f0c...`."""
    return f"{prefix}-{secrets.token_hex(16)}"


def entry_type(entries: list[Any], limit: int) -> type | None:
    """The type that the first `limit` entries have in common, None if they have none."""
    kinds = set(map(type, entries[:limit]))
    return kinds.pop() if len(kinds) == 1 else None


# -- conversations ---------------------------------------------------------------------------------

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
FUNCTION = "function"
SPEAKERS_WITHOUT_TEXT = ("assistant", "tool", "function")


def template_messages(messages: list[Message]) -> Work[list[dict[str, Any]]]:
    """Messages as templates expect them."""
    normalized: list[dict[str, Any]] = []
    values = 0
    for number, message in enumerate(messages):
        normalized.append((yield from template_message(message, f"messages[{number}]")))
        yield
        calls: list[dict[str, Any]] = []
        for index, call in enumerate(message.tool_calls or ()):
            place = f"messages[{number}].tool_calls[{index}]"
            shown, count = yield from template_call(call, place)
            calls.append(shown)
            values += count
            if values > VALUES:
                reason = f"the arguments of tool calls hold more than {VALUES} values"
                raise BadRequest("messages", reason)
        if calls:
            normalized[-1]["tool_calls"] = calls
    return normalized


def template_message(message: Message, field: str) -> Work[dict[str, Any]]:
    """One message, without its tool calls."""
    if message.role not in ROLES:
        raise BadRequest(f"{field}.role", f"must be one of {', '.join(ROLES)}")
    refuse_unsupported(message, MESSAGE_REFUSED, place=f"{field}.")
    shown = yield from content(message, field)
    normalized: dict[str, Any] = {"role": message.role, "content": shown}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            normalized[name] = value
    return normalized


def content(message: Message, field: str) -> Work[str | list[dict[str, str]] | None]:
    """The content if it is text, whole or in parts; other parts are refused."""
    parts = message.content
    if parts is None and message.role not in SPEAKERS_WITHOUT_TEXT:
        raise BadRequest(f"{field}.content", "is required")
    if parts is None or isinstance(parts, str):
        return parts
    texts: list[dict[str, str]] = []
    for number, part in enumerate(parts):
        place = f"{field}.content[{number}]"
        texts.append({"type": "text", "text": (yield from part_text(part, place))})
        yield
    return texts


def part_text(part: ContentPart, place: str) -> Work[str]:
    """What it says. BadRequest for a part that is no text."""
    if part.type == "file":
        if part.file is None:
            raise BadRequest(f"{place}.file", "is required")
        return (yield from read_file(part.file, f"{place}.file"))
    if part.type != "text":
        raise refuse_part(part.type, place, "text and file")
    if part.text is None:
        raise BadRequest(f"{place}.text", NO_TEXT)
    return part.text


def template_call(call: ToolCall, field: str) -> Work[tuple[dict[str, Any], int]]:
    """(a past call, how many values its arguments hold, at most)"""
    shown = {key: value for key in ("id", "index") if (value := getattr(call, key)) is not None}
    match call:
        case ToolCall(type="custom", custom=CustomCall() as custom):
            name, arguments, values = custom.name, {INPUT: custom.input}, 1
        case ToolCall(type=None | "function", function=FunctionCall() as function):
            place = f"{field}.function.arguments"
            name = function.name
            arguments, values = yield from read_arguments(function.arguments, place)
        case ToolCall(type=None | "function" | "custom"):
            raise BadRequest(f"{field}.{call.type or FUNCTION}", "is missing: what was called")
        case _:
            reason = f"{abbreviate(call.type)!r}: past calls are of type function or custom"
            raise BadRequest(f"{field}.type", reason)
    return {"type": FUNCTION, **shown, FUNCTION: {"name": name, "arguments": arguments}}, values


def read_arguments(given: str | dict[str, Any] | None, field: str) -> Work[tuple[Any, int]]:
    """(the object of a past call's arguments, how many values it holds, at most): templates want an
    object, clients send a string; an empty one where there are none."""
    if not isinstance(given, str):
        return given or {}, 0
    try:
        data = b"{}" if given in ("", "null") else given.encode()
        values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
        if values > DEPTH or len(data) > PART_BYTES:  # many of them, or a long text
            scan = Scan(data, {})
            yield from scan.run()
            values = scan.values
            arguments = yield from decode_document(data, scan)
        else:
            arguments = msgspec.json.decode(data)
    except (BadRequest, msgspec.DecodeError, ValueError, RecursionError) as error:
        yield
        whole = whole_part(given)
        if whole not in ("", given):  # of a call that was cut off
            return (yield from read_arguments(whole, field))
        raise BadRequest(field, getattr(error, "reason", "is not valid JSON")) from None
    if not isinstance(arguments, dict):
        raise BadRequest(field, f"must be the text of a JSON object, not of {json_type(arguments)}")
    return arguments, values
