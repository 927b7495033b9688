"""What is answered is what the OpenAPI document says, and meta_info is complete."""

from __future__ import annotations

import time
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from server_kit import MODEL, Running, ask, documents, events, running_server

from vivace.server import schema as native
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings

HI: list[Any] = [{"role": "user", "content": "hi"}]
PLAIN = {"type": "text"}
GENERATE: dict[str, Any] = {"text": "ab", "sampling_params": {"max_new_tokens": 3}}
COMPLETION: dict[str, Any] = {"prompt": "ab", "max_tokens": 3}
CHAT: dict[str, Any] = {"messages": HI, "max_tokens": 3}
OLLAMA: dict[str, Any] = {"model": MODEL, "stream": False, "options": {"num_predict": 3}}
DETAILS = {"return_cached_tokens_details": True, "return_token_ids": True}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(cache_report=True)) as running:
        yield running


@pytest.fixture(scope="module")
def embedding() -> Iterator[Running]:
    with running_server(every_task=True) as running:
        yield running


def strict(kind: Any) -> Any:
    """The same type, in which a field that it does not name is an error, at every level."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        fields: list[Any] = []
        for field in msgspec.structs.fields(kind):
            if field.required:
                fields.append((field.name, strict(hints[field.name])))
            else:
                fields.append((field.name, strict(hints[field.name]), field.default))
        return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)
    parts = tuple(strict(part) for part in typing.get_args(kind))
    if not parts:
        return kind
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.Union[parts]  # noqa: UP007
    generic: Any = typing.get_origin(kind)
    return generic[parts]


ROUTE = {route.path: route for route in ROUTES}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", GENERATE),
        ("/generate", {**GENERATE, "return_prompt_token_ids": True}),
        (
            "/generate",
            {
                **GENERATE,
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs_num": 2,
                "token_ids_logprob": [65],
            },
        ),
        ("/v1/completions", COMPLETION),
        ("/v1/completions", {**COMPLETION, **DETAILS, "logprobs": 2, "echo": True, "n": 2}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, **DETAILS, "service_tier": "auto"}),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}),
        ("/tokenize", {"prompt": "ab"}),
        ("/tokenize", {"prompt": ["a", "b"]}),
        ("/detokenize", {"tokens": [[65], [66]]}),
        ("/invocations", CHAT),
        ("/vertex_generate", {"instances": [{"text": "ab"}]}),
        ("/v1/messages/count_tokens", {"messages": HI}),
        ("/api/chat", {**OLLAMA, "messages": HI, "logprobs": True}),
        ("/api/generate", {**OLLAMA, "prompt": "ab"}),
        ("/api/show", {"model": MODEL}),
        ("/parse_function_call", {"text": "a", "tools": [], "tool_call_parser": "hermes"}),
        ("/separate_reasoning", {"text": "a", "reasoning_parser": "qwen3"}),
    ],
)
def test_answers_are_as_documented(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = ask(server, path, body)
    assert answer.status == 200
    msgspec.json.decode(answer.text, type=strict(ROUTE[path].answers))
    kind = ROUTE[path].streams
    if kind is None:
        return
    usage = {} if path == "/generate" else USAGE
    *found, done = events(ask(server, path, {**body, "stream": True, **usage}).text)
    assert done == "[DONE]" and len(found) >= 3
    for event in found:
        msgspec.json.decode(event, type=strict(kind))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": HI, "max_tokens": 3}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 3, "top_logprobs": 2}),
        ("/api/chat", {**OLLAMA, "messages": HI}),
        ("/api/generate", {**OLLAMA, "prompt": "ab"}),
    ],
)
def test_streams_of_other_apis_are_as_documented(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    answer = ask(server, path, body)
    assert answer.status == 200
    msgspec.json.decode(answer.text, type=strict(ROUTE[path].answers))
    found = documents(ask(server, path, {**body, "stream": True}).text)
    assert len(found) >= 3
    for one in found:
        msgspec.convert(one, strict(ROUTE[path].streams or ROUTE[path].answers))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/embed", {"model": MODEL, "input": "ab"}),
        ("/api/embed", {"model": MODEL, "input": ["a", "bc"], "dimensions": 2}),
        ("/api/embeddings", {"model": MODEL, "prompt": "ab"}),
        ("/v1/embeddings", {"model": MODEL, "input": ["a", "bc"]}),
    ],
)
def test_vectors_are_as_documented(embedding: Running, path: str, body: dict[str, Any]) -> None:
    answer = ask(embedding, path, body)
    assert answer.status == 200, answer.text
    found = msgspec.json.decode(answer.text, type=strict(ROUTE[path].answers))
    if path == "/api/embed":
        count = len(body["input"]) if isinstance(body["input"], list) else 1
        assert len(found.embeddings) == count and found.prompt_eval_count > 0


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version"])
def test_facts_of_ollama_are_as_documented(server: Running, path: str) -> None:
    answer = ask(server, path, method="GET")
    msgspec.json.decode(answer.text, type=strict(ROUTE[path].answers))


def test_models_and_errors_are_as_documented(server: Running) -> None:
    for path in ("/v1/models", f"/v1/models/{MODEL}"):
        kind = ROUTE["/v1/models" if path.endswith("models") else "/v1/models/{model:.+}"].answers
        msgspec.json.decode(ask(server, path, method="GET").text, type=strict(kind))
    for answer in (ask(server, "/generate", {}), ask(server, "/nothing", method="GET")):
        msgspec.json.decode(answer.text, type=strict(native.ErrorBody))


META = {
    *("id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"),
    *("cached_tokens_details", "weight_version", "dp_rank", "num_retractions"),
}
TIMES = {
    *("e2e_latency", "queue_time", "inference_time", "decode_throughput"),
    *("request_received_ts", "request_sent_to_scheduler_ts", "prefill_finished_ts"),
    *("decode_finished_ts", "response_sent_to_client_ts"),
}
MISSING = {
    "spec_accept_rate": "no speculation",
    "spec_accept_length": "no speculation",
    "spec_verify_ct": "no speculation",
    "hidden_states": "refused",
    "routed_experts": "refused",
}
"""Entries of SGLang's meta_info that need a feature this server does not have."""


@pytest.mark.parametrize("stream", [False, True])
def test_meta_info_is_complete(server: Running, stream: bool) -> None:
    begin = time.time()
    text = ask(server, "/generate", {**GENERATE, "stream": stream}).text
    found = [msgspec.json.decode(e) for e in (events(text)[:-1] if stream else [text])]
    for event in found[:-1]:
        assert event["meta_info"].keys() == META
    meta = found[-1]["meta_info"]
    assert meta.keys() == META | TIMES | {"max_new_tokens"}
    assert not meta.keys() & MISSING.keys()
    assert meta["cached_tokens_details"] == {"device": meta["cached_tokens"], "host": 0}
    assert (meta["dp_rank"], meta["num_retractions"], meta["weight_version"]) == (0, 0, "default")
    moments = [
        *(meta["request_received_ts"], meta["request_sent_to_scheduler_ts"]),
        *(meta["prefill_finished_ts"], meta["decode_finished_ts"]),
    ]
    assert moments == sorted(moments)
    assert begin - 1 < moments[0] and moments[-1] < time.time() + 1
    assert meta["e2e_latency"] == pytest.approx(moments[-1] - moments[0], abs=1e-3)
    assert meta["inference_time"] <= meta["e2e_latency"]
    assert meta["decode_throughput"] > 0


def test_cached_tokens_by_tier(server: Running) -> None:
    """3 of each prompt are cached in the scripted engine."""
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        wanted = {"cached_tokens_details": {"device": 3, "host": 0}}
        asked = {**body, "return_cached_tokens_details": True}
        assert ask(server, path, asked).json["sglext"] == wanted
        assert "sglext" not in ask(server, path, body).json
        streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
        *_, details, usage, _ = events(ask(server, path, streamed).text)
        told = msgspec.json.decode(details)
        assert (told["choices"], told["sglext"]) == ([], wanted)
        assert msgspec.json.decode(usage)["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    several = {"prompt": ["a", "b"], "n": 2, "max_tokens": 1, "return_cached_tokens_details": True}
    details = ask(server, "/v1/completions", several).json["sglext"]["cached_tokens_details"]
    assert details["device"] == 6


def test_a_chat_names_the_tier_it_was_served_in(server: Running) -> None:
    for tier in ("auto", "default", "flex", "on_demand"):
        asked = {**CHAT, "service_tier": tier}
        assert ask(server, "/v1/chat/completions", asked).json["service_tier"] == "default"
        *found, _ = events(ask(server, "/v1/chat/completions", {**asked, "stream": True}).text)
        assert {msgspec.json.decode(event)["service_tier"] for event in found} == {"default"}
    assert "service_tier" not in ask(server, "/v1/chat/completions", CHAT).json


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "hi", "response_format": PLAIN}),
        ("/generate", {"text": "hi", "sampling_params": {"response_format": PLAIN}}),
        ("/v1/chat/completions", {"messages": HI, "response_format": PLAIN}),
        ("/v1/completions", {"prompt": "hi", "response_format": PLAIN}),
        ("/v1/responses", {"input": "hi", "text": {"format": PLAIN}, "response_format": PLAIN}),
        (
            "/v1/messages",
            {
                "messages": HI,
                "max_tokens": 1,
                "output_config": {"format": PLAIN},
                "output_format": PLAIN,
                "response_format": PLAIN,
            },
        ),
        ("/api/chat", {"model": "toy", "messages": HI, "format": PLAIN, "response_format": PLAIN}),
        ("/vertex_generate", {"instances": [{"text": "hi"}], "response_format": PLAIN}),
    ],
)
def test_a_format_of_plain_text_asks_for_what_happens_anyway(path: str, body: Any) -> None:
    with running_server() as server:
        assert ask(server, path, body).status == 200
        (request,) = server.engine.requests
        assert request.sampling.constraint is None


def test_other_formats_are_told_where_to_go() -> None:
    with running_server() as server:
        for given, word in (
            ({"sampling_params": {"response_format": {"type": "json_object"}}}, "json_schema"),
            ({"response_format": {"type": "json_object"}}, "json_schema"),
            ({"sampling_params": {"guided_regex": "a"}}, "regex"),
        ):
            answer = ask(server, "/generate", {"text": "hi", **given})
            assert answer.status == 400 and word in answer.json["message"]
