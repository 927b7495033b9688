"""No field is silent: each has an effect, is refused with the reason, or provably asks for what
happens anyway. A field without a case in field_cases fails."""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import fake_tools
import msgspec
import pytest
from field_cases import (
    ABSENT,
    BODIES,
    NATIVE_SAMPLING,
    THOUGHT,
    TWO_CALLS,
    Body,
    Case,
    Effect,
    Harmless,
    Logged,
    Refused,
)
from server_kit import (
    BOS,
    Answer,
    Running,
    ScriptedEngine,
    ask,
    documents,
    make_tokenizer,
    refusal,
)
from server_kit import running_server as start

from vivace.config.http import ToolServerSpec
from vivace.frontend import validation
from vivace.protocol.messages import Cancel, Request
from vivace.requests import schema as requests
from vivace.requests.schema import GenerateRequest
from vivace.server.openai import schema as openai
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings
from vivace.tool_servers.servers import ToolServers

TEMPLATE = (
    "{{ tools | tojson if tools }}"
    "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ shout }}{{ reasoning_effort }}"
    "{{ enable_thinking }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LOGGING = {"log_requests": True, "log_requests_level": 2, "log_requests_format": "json"}
WHEN = {"created", "id", "e2e_latency", "queue_time", "inference_time", "decode_throughput", "when"}
WHEN |= {"created_at", "completed_at", "total_duration", "prompt_eval_duration", "eval_duration"}
"""Parts of answers that differ every time, beside the ones that end in _ts."""
NEW_ID = re.compile(r"(msg|resp|ollama)_[0-9a-f]+|embd-[0-9a-f]+")
"""Ids of requests of APIs in which nobody says one."""


def thinking(_: Request) -> list[int]:
    first, *rest = THOUGHT.encode()
    return [first, BOS, *rest, *TWO_CALLS.encode()]


@dataclass
class Listening(ScriptedEngine):
    """Remembers cancellations too."""

    cancels: list[Cancel] = field(default_factory=list)

    def send(self, message: Any) -> None:
        if isinstance(message, Cancel) and message.rid_prefix is not None:
            self.cancels.append(message)
        super().send(message)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    settings = ServerSettings(
        metrics=True,
        log_requests=True,
        log_requests_format="json",
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
    )
    tokenizer = make_tokenizer(TEMPLATE, begin=True)
    listening = Listening(script=thinking)
    options: Any = {"tokenizer": tokenizer, "every_task": True, "seeds": itertools.repeat(3)}
    command = (sys.executable, fake_tools.__file__)
    tools = ToolServers([ToolServerSpec(label="fake", transport="stdio", command=command)])
    with start(settings, listening, tool_servers=tools, **options) as running:
        yield running
        asyncio.run_coroutine_threadsafe(tools.close(), running.loop).result(10)


@dataclass
class Seen:
    answer: Any
    engine: Any
    log: Any
    raw: Answer
    lines: list[str]


def look(server: Running, path: str, body: Mapping[str, Any]) -> Seen:
    """Send one body; everything of it that anybody can see, without times and random ids."""
    logger = logging.getLogger("vivace.requests")
    logger.setLevel(logging.INFO)
    engine: Any = server.engine
    requests, cancels = len(engine.requests), len(engine.cancels)
    lines = Lines()
    logger.addHandler(lines)
    try:
        raw = ask(server, path, body)
    finally:
        logger.removeHandler(lines)
        if path == "/configure_logging":
            ask(server, path, LOGGING)
    if raw.json is not None or not raw.text:
        answer = raw.json
    else:
        answer = documents(raw.text)
    return Seen(
        answer=(raw.status, timeless(answer)),
        engine=[
            *(timeless(msgspec.to_builtins(r)) for r in engine.requests[requests:]),
            *(timeless(msgspec.to_builtins(cancel)) for cancel in engine.cancels[cancels:]),
        ],
        log=[timeless(msgspec.json.decode(line)) for line in lines.found],
        raw=raw,
        lines=lines.found,
    )


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def counters(server: Running) -> list[str]:
    """What the HTTP layer counts beside requests and answers."""
    page = ask(server, "/metrics", method="GET").text
    return [line for line in page.splitlines() if line.startswith("vivace:") and "_total{" in line]


def timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [timeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: timeless(item)
        for key, item in value.items()
        if not (key in WHEN or str(key).endswith("_ts") or key in ("key", "arrival", "begin"))
        and not (key == "rid" and NEW_ID.fullmatch(str(item)))
    }


def with_value(body: Body, name: str, value: Any, around: Mapping[str, Any]) -> dict[str, Any]:
    whole: Any = copy.deepcopy(dict(body.base))
    inner = whole
    for step in body.place:
        inner = inner[step]
    inner |= copy.deepcopy(dict(around))
    if value is not ABSENT:
        inner[name] = value
    return whole


def prove(server: Running, body: Body, name: str, case: Case) -> None:
    def seen(value: Any, around: Mapping[str, Any]) -> Seen:
        return look(server, body.path, with_value(body, name, value, around))

    if isinstance(case, Effect) and case.sees == "metrics":
        seen(case.one, case.around)
        before = counters(server)
        seen(case.one, case.around)
        assert counters(server) == before
        seen(case.other, case.around)
        assert counters(server) != before
    elif isinstance(case, Effect):
        one, other = seen(case.one, case.around), seen(case.other, case.around)
        assert (one.raw.status, other.raw.status) == (200, 200), (one.raw.text, other.raw.text)
        assert getattr(one, case.sees) != getattr(other, case.sees)
    elif isinstance(case, Logged):
        one, other = seen(case.value, {}), seen(ABSENT, {})
        assert (one.answer, one.engine) == (other.answer, other.engine)
        assert one.log != other.log
        assert one.log[0][name] == case.value and name not in other.log[0]
    elif isinstance(case, Harmless):
        left_out = seen(ABSENT, case.around)
        assert left_out.raw.status == 200, left_out.raw.text
        for value in case.values:
            one = seen(value, case.around)
            assert (one.answer, one.engine, one.log) == (
                (left_out.answer, left_out.engine, left_out.log)
            ), f"{name}={value!r} is not what is said of it: {case.why}"
    else:
        refused = seen(case.value, case.around)
        assert refused.raw.status == 400
        field, message = refusal(refused.raw.json)
        assert name in field or name == "type"  # its holder is named
        assert case.says in message
        assert not refused.engine


SET = (True, {"x": 1}, 3, "x")
"""Values that ask for something; a field takes those of its type."""

# -- the walk ------------------------------------------------------------------------------------


def structs_in(kind: Any) -> Iterable[type[msgspec.Struct]]:
    """The structs of a type, with those of their fields."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for hint in typing.get_type_hints(kind).values():
            yield from structs_in(hint)
    for part in typing.get_args(kind):
        yield from structs_in(part)


ACCEPTED = list(
    dict.fromkeys(s for route in ROUTES if route.accepts for s in structs_in(route.accepts))
)


def test_every_struct_of_a_body_is_walked() -> None:
    assert set(ACCEPTED) == set(BODIES)


def list_cases(kind: type[msgspec.Struct], name: str) -> list[Case]:
    body = BODIES[kind]
    found = list(body.cases.get(name, ()))
    if name in body.refused:
        fitting = [value for value in SET if fits(kind, name, value)]
        found += [Refused(value, body.refused[name]) for value in fitting[:2]]
    if name in body.harmless:
        found.append(Harmless(body.harmless[name], "it asks for what happens anyway"))
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ACCEPTED for name in kind.__struct_fields__],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_field_works_or_is_refused(
    server: Running, kind: type[msgspec.Struct], name: str
) -> None:
    cases = list_cases(kind, name)
    assert cases, f"nothing is said of {kind.__name__}.{name}: add a case to field_cases"
    for case in cases:
        prove(server, BODIES[kind], name, case)


def fits(kind: type[msgspec.Struct], name: str, value: Any) -> bool:
    """False: the field's type refuses the value, which other tests show."""
    try:
        msgspec.convert(value, typing.get_type_hints(kind)[name])
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_there_are_no_cases_of_fields_that_are_gone(kind: type[msgspec.Struct]) -> None:
    body = BODIES[kind]
    names = set(body.cases) | set(body.refused) | set(body.harmless)
    assert names <= set(kind.__struct_fields__)


@pytest.mark.parametrize("name", validation.SAMPLING_FIELDS)
def test_every_sampling_parameter_has_an_effect(server: Running, name: str) -> None:
    for case in NATIVE_SAMPLING[name]:
        prove(server, SAMPLING_BODY, name, case)


@pytest.mark.parametrize("name", validation.UNAVAILABLE)
def test_sampling_parameters_that_are_missing_are_refused(server: Running, name: str) -> None:
    prove(server, SAMPLING_BODY, name, Refused({"x": 1}, validation.UNAVAILABLE[name]))


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, [None]])
def test_empty_values_of_missing_sampling_parameters_are_fine(server: Running, value: Any) -> None:
    """SGLang's frontend language sends `stop_regex: []` with every request."""
    empty = Harmless((value,), "it asks for nothing")
    for name in validation.UNAVAILABLE:
        prove(server, SAMPLING_BODY, name, empty)


SAMPLING_BODY = Body(
    "/generate", BODIES[GenerateRequest].base, NATIVE_SAMPLING, place=("sampling_params",)
)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_empty_values_of_refused_fields_are_fine(
    server: Running, kind: type[msgspec.Struct]
) -> None:
    """Clients send every field they know, with nothing in it."""
    body = BODIES[kind]
    for value in (None, False, 0, "", [], {}, [None], [False]):
        names = [n for n in body.refused if n != "web_search_options" and fits(kind, n, value)]
        if not names:
            continue
        sent = look(server, body.path, with_value(body, "", ABSENT, dict.fromkeys(names, value)))
        assert sent.raw.status == 200, (value, sent.raw.text)


# -- what clients of SGLang and OpenAI know --------------------------------------------------------

SGLANG = {
    "/generate": """
        rid session_id text input_ids input_embeds image_data video_data audio_data mm_hashes
        mm_content_hashes use_audio_in_video video_config sampling_params watermark return_logprob
        logprob_start_len top_logprobs_num token_ids_logprob return_sampling_mask
        sampling_logprobs_mode return_text_in_logprobs return_flat_raw_top_logprobs
        return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 stream log_metrics
        return_hidden_states return_routed_experts routed_experts_start_len return_indexer_topk
        modalities session_params lora_path lora_id custom_logit_processor
        positional_embed_overrides bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key
        decode_tp_size routed_dp_rank data_parallel_rank disagg_prefill_dp_rank routing_key
        conversation_id http_worker_ipc background require_reasoning max_thinking_tokens priority
        extra_key no_logs custom_labels return_bytes return_entropy return_prompt_token_ids
        external_trace_header received_time need_wait_for_mm_inputs num_items_assigned encoder_urls
        max_dynamic_patch min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch
        images_config mm_processor_kwargs multi_item_delimiter_indices token_indices_to_pool
        cache_salt kv_hints""",
    "/v1/chat/completions": """
        messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens
        max_completion_tokens n presence_penalty response_format seed stop stream stream_options
        temperature top_p user tools tool_choice parallel_tool_calls return_hidden_states
        return_routed_experts routed_experts_start_len return_cached_tokens_details
        return_spec_tokens_details return_prompt_token_ids return_token_ids return_meta_info
        return_input_ids_in_sglext return_output_ids_in_sglext return_sampling_mask
        sampling_logprobs_mode return_flat_raw_output_top_logprobs
        return_flat_raw_top_logprobs_b64 reasoning_effort thinking task top_k min_p min_tokens
        regex ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos
        continue_final_message skip_special_tokens lora_path session_id session_params
        separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch
        min_dynamic_patch use_audio_in_video images_config video_config mm_processor_kwargs
        custom_logit_processor custom_params watermark input_ids rid extra_key cache_salt priority
        data_parallel_rank bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
        disagg_prefill_dp_rank""",
    "/v1/completions": """
        model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n
        presence_penalty seed stop stream stream_options suffix temperature top_p user
        return_hidden_states return_routed_experts routed_experts_start_len
        return_cached_tokens_details return_spec_tokens_details return_token_ids top_k min_p
        min_tokens json_schema regex ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim
        ignore_eos skip_special_tokens lora_path session_id session_params response_format
        custom_params custom_logit_processor watermark images_config mm_processor_kwargs
        data_parallel_rank rid extra_key cache_salt priority custom_labels bootstrap_host
        bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank""",
    "/tokenize": """
        model prompt messages tools tool_choice reasoning_effort continue_final_message
        chat_template_kwargs add_special_tokens add_generation_prompt""",
    "/detokenize": "model tokens skip_special_tokens",
}
OPENAI = {
    "/v1/chat/completions": """
        messages model audio frequency_penalty function_call functions logit_bias logprobs
        max_completion_tokens max_tokens metadata modalities moderation n parallel_tool_calls
        prediction presence_penalty prompt_cache_key prompt_cache_retention reasoning_effort
        response_format
        safety_identifier seed service_tier stop store stream stream_options temperature
        tool_choice tools top_logprobs top_p user verbosity web_search_options""",
    "/v1/completions": """
        model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n
        presence_penalty seed stop stream stream_options suffix temperature top_p user""",
}


OTHERS = {
    "/v1/messages": """
        max_tokens messages model cache_control compaction container context_management mcp_servers
        metadata output_config output_format service_tier stop_sequences stream system temperature
        thinking thread tool_choice tools top_k top_p""",
    "/v1/responses": """
        background context_management conversation include input instructions max_output_tokens
        max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt
        prompt_cache_key prompt_cache_retention reasoning safety_identifier service_tier store
        stream stream_options temperature text tool_choice tools top_logprobs top_p truncation
        user""",
}


@pytest.mark.parametrize("table", [SGLANG, OPENAI, OTHERS], ids=["sglang", "openai", "others"])
def test_every_documented_field_is_known(table: dict[str, str]) -> None:
    """Names of SGLang 0.5.23 and of OpenAI's reference of 2025, and those of the Python clients
    `anthropic` 2.14 and `openai` 3.57 that ask for something."""
    accepts = {route.path: route.accepts for route in ROUTES}
    for path, names in table.items():
        missing = set(names.split()) - set(accepts[path].__struct_fields__)
        assert not missing, f"{path}: {sorted(missing)}"


REASONS = {
    **validation.UNAVAILABLE, **requests.REFUSED, **requests.MESSAGE_REFUSED, **openai.REFUSED,
    **openai.CHAT_REFUSED, **openai.COMPLETION_REFUSED,
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_what_is_not_supported_yet_comes_with_what_to_do(name: str) -> None:
    what, _, remedy = REASONS[name].partition("not supported yet")
    assert what and (remedy.startswith("; ") or REASONS[name] == what)
