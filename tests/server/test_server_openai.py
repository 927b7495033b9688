"""The OpenAI API, used through the `openai` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from server_kit import MODEL, PROSE, Running, ask, events, refusal, running_server

from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings

HI: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT = "<user>hi\n<assistant>"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(cache_report=True), every_task=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as found:
        yield found


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


def test_chat(client: openai.OpenAI, server: Running) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=5, seed=0)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == PROSE[:5]
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.total_tokens == len(PROMPT) + 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert bytes(server.engine.requests[-1].tokens).decode() == PROMPT
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL


def test_chat_without_a_limit_may_use_the_whole_context(
    client: openai.OpenAI, server: Running
) -> None:
    stop = PROSE[20:25]
    client.chat.completions.create(model="default", messages=HI, stop=stop, seed=0)
    assert server.engine.requests[-1].sampling.max_new_tokens == 512 - len(PROMPT)


def test_chat_stream_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_completion_tokens=30,
        seed=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == PROSE[:30]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-2])
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 30
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_stream_of_wide_characters_never_splits_one(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=200, seed=0, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == (PROSE * 5).encode()[:200].decode("utf-8", "replace")


def test_chat_n_samples_in_one_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=8, seed=0, stream=True, n=3
    )
    texts = {0: "", 1: "", 2: ""}
    ends = []
    for chunk in stream:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends.append(choice.index)
    assert texts == {i: PROSE[i : i + 8] for i in range(3)}
    assert sorted(ends) == [0, 1, 2]


def test_chat_n_counts_the_prompt_once(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=4, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 8)


def test_chat_stop_string(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=40, seed=0, stop=["fox", "never"]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "The quick brown "
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["matched_stop"] == "fox"


def test_chat_stop_string_in_a_stream_never_shows_its_beginning(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=40, seed=0, stop="fox", stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "The quick brown "


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client: openai.OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HI, "max_tokens": 3, "seed": 0}
    options |= {"logprobs": True, "top_logprobs": 2, "stream": stream}
    answer = client.chat.completions.create(**options)
    found = answer if stream else [answer]
    entries = [
        entry
        for part in found
        for entry in (part.choices[0].logprobs.content if part.choices[0].logprobs else [])
    ]
    assert [entry.token for entry in entries] == list("The")
    assert [entry.bytes for entry in entries] == [[ord(c)] for c in "The"]
    assert entries[0].logprob == -ord("T") / 1000
    assert [top.token for top in entries[0].top_logprobs] == ["T", "U"]


def test_chat_text_parts_and_continuation(client: openai.OpenAI, server: Running) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "Sure"},
    ]
    client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=1,
        extra_body={"continue_final_message": True},
    )
    text = bytes(server.engine.requests[-1].tokens).decode()
    assert text == "<user>a b\n<assistant>Sure"


def test_chat_extensions_reach_the_engine(client: openai.OpenAI, server: Running) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_tokens=3,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logit_bias={"65": 2},
        seed=11,
        user="me",
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "min_tokens": 2,
            "repetition_penalty": 1.1,
            "stop_token_ids": [7],
            "ignore_eos": True,
            "rid": "mine",
            "priority": 4,
            "return_token_ids": True,
            "an_unknown_field": 1,
        },
    )
    assert answer.id == "mine"
    request = server.engine.requests[-1]
    assert (request.rid, request.priority) == ("mine", 4)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
    assert (sampling.min_p, sampling.min_new_tokens, sampling.seed) == (0.1, 2, 11)
    assert (sampling.repetition_penalty, sampling.stop_token_ids) == (1.1, (7,))
    assert (sampling.ignore_eos, sampling.logit_bias) == (True, {65: 2.0})
    assert answer.choices[0].model_extra is not None
    assert len(answer.choices[0].model_extra["token_ids"]) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": "required"},
        {"tools": [{"type": "function", "function": {}}]},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        {"response_format": {"type": "json_schema", "schema": {"type": "object"}}},
        {"response_format": {"type": "json_object"}, "regex": "a+"},
        {"regex": ["a+"]},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"lora_path": "x"},
        {"stream_options": {"include_usage": True}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user"}]},
        {"messages": []},
        {"chat_template_kwargs": {"messages": []}},
        {"continue_final_message": True},
    ],
)
def test_chat_refuses_what_it_cannot_do(server: Running, body: dict) -> None:
    answer = ask(server, "/v1/chat/completions", {"messages": HI, "max_tokens": 2, **body})
    assert answer.status == 400
    assert answer.json["error"]["param"]
    assert answer.json["error"]["type"] == "BadRequestError"


def test_the_refusal_of_functions_names_the_other_field_too(server: Running) -> None:
    body = {"messages": HI, "functions": [{"name": "f"}], "function_call": "auto"}
    answer = ask(server, "/v1/chat/completions", body)
    assert answer.status == 400 and "function_call" in answer.json["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"tool_choice": "none"},
        {"tools": []},
        {"response_format": {"type": "text"}},
        {"messages": [{"role": "assistant", "content": None}, HI[0]]},
    ],
)
def test_chat_accepts_what_changes_nothing(server: Running, body: dict) -> None:
    answer = ask(server, "/v1/chat/completions", {"messages": HI, "max_tokens": 2, **body})
    assert answer.status == 200


def test_completion_of_every_prompt_form(client: openai.OpenAI, server: Running) -> None:
    forms: list[Any] = ["hi", ["hi", "you"], [104, 105], [[104, 105], [121, 111, 117]]]
    counts = [[2], [2, 3], [2], [2, 3]]
    for prompt, count in zip(forms, counts, strict=True):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, seed=0)
        assert [choice.text for choice in answer.choices] == [PROSE[:3]] * len(count)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(count)
        sent = server.engine.requests[-len(count) :]
        assert [len(request.tokens) for request in sent] == count


def test_completion_defaults_to_16_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="x", seed=0)
    assert answer.choices[0].text == PROSE[:16]


def test_completion_samples_are_grouped_by_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["a", "b"], n=2, best_of=2, max_tokens=4, seed=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [PROSE[:4], PROSE[1:5]] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 16)


def test_completion_echo_with_logprobs_of_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="héy", echo=True, logprobs=1, max_tokens=2, seed=0
    )
    (choice,) = answer.choices
    assert choice.text == "héyTh"
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens or []) == 6
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[-1] == -ord("h") / 1000
    assert logprobs.top_logprobs[-1] == {"h": 0.0}


def test_completion_scoring_of_a_prompt_without_generation(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=[65, 66], echo=True, logprobs=0, max_tokens=0
    )
    (choice,) = answer.choices
    assert choice.text == "AB"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, pytest.approx(-66 / 1000)]
    assert choice.logprobs.text_offset == [0, 1]


def test_completion_stream_with_echo_usage_and_logprobs(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="ab",
        echo=True,
        logprobs=1,
        max_tokens=4,
        seed=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "ab" + PROSE[:4]
    tokens = [
        token
        for chunk in chunks[:-1]
        for token in (chunk.choices[0].logprobs.tokens if chunk.choices[0].logprobs else [])
    ]
    offsets = [
        offset
        for chunk in chunks[:-1]
        for offset in (chunk.choices[0].logprobs.text_offset if chunk.choices[0].logprobs else [])
    ]
    assert tokens == list("ab" + PROSE[:4])
    assert offsets == list(range(6))
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_continuous_usage_is_in_every_chunk(server: Running) -> None:
    body = {
        "prompt": "ab",
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"continuous_usage_stats": True},
    }
    *found, _ = events(ask(server, "/v1/completions", body).text)
    assert [json.loads(data)["usage"]["completion_tokens"] for data in found] == [1, 2, 3]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"suffix": "x", "echo": True, "logprobs": 0}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[1], [2, 300]]}, "prompt[1]"),
        ({"json_schema": "{}", "regex": "a"}, "regex"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 99, "max_tokens": 2}, "min_tokens"),
        ({"seed": 1 << 70}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 100000}, "n"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
    ],
)
def test_completion_names_the_field_in_openais_words(
    server: Running, body: dict, field: str
) -> None:
    answer = ask(server, "/v1/completions", {"prompt": "x", "max_tokens": 4, **body})
    assert answer.status == 400
    assert answer.json["error"]["param"] == field


WITH_A_MODEL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "x"},
    "/invocations": {"messages": HI, "max_tokens": 2},
    "/api/chat": {"messages": HI, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "x", "stream": False, "options": {"num_predict": 2}},
    "/api/embed": {"input": "x"},
    "/api/embeddings": {"prompt": "x"},
    "/v1/messages": {"messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/embeddings": {"input": "x"},
    "/score": {"query": "x", "items": ["y"], "label_token_ids": [65]},
    "/v1/score": {"query": "x", "items": ["y"], "label_token_ids": [65]},
    "/rerank": {"query": "x", "documents": ["y"]},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v2/rerank": {"query": "x", "documents": ["y"]},
    "/v1/classify": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/v1/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [65]},
    "/v1/detokenize": {"tokens": [65]},
}


OTHER_ERRORS = {
    **dict.fromkeys(("/v1/messages", "/v1/messages/count_tokens"), "not_found_error"),
    **dict.fromkeys(("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"), "error"),
}
"""Routes of other APIs, and what their 404 has in it."""


def test_the_routes_that_take_a_model_are_all_here() -> None:
    taking = {
        route.path for route in ROUTES if "model" in getattr(route.accepts, "__struct_fields__", ())
    }
    assert taking - {"/api/show"} == set(WITH_A_MODEL)  # that one answers 404 to other names


def named_model(answer: Any) -> str:
    """The model that an answer names; reranked documents name none."""
    return MODEL if isinstance(answer, list) else answer.get("model", MODEL)


@pytest.mark.parametrize("path", WITH_A_MODEL)
def test_any_model_name_is_answered_by_the_served_model_and_counted(path: str) -> None:
    with running_server(ServerSettings(metrics=True), every_task=True) as server:
        for count, model in enumerate(("gpt-9", "Qwen/Qwen3-8B", "llama3:8b", "toys:x"), 1):
            answer = ask(server, path, {**WITH_A_MODEL[path], "model": model})
            assert answer.status == 200
            assert named_model(answer.json) == MODEL
            assert unserved(server) == count
        for model in (MODEL, "/models/toy", "default", ""):
            answer = ask(server, path, {**WITH_A_MODEL[path], "model": model})
            assert answer.status == 200
            assert named_model(answer.json) == MODEL
        assert unserved(server) == 4


def unserved(server: Running) -> float:
    for line in ask(server, "/metrics", method="GET").text.splitlines():
        if line.startswith("vivace:unserved_model_requests_total{"):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


@pytest.mark.parametrize("path", WITH_A_MODEL)
@pytest.mark.parametrize("model", [f"{MODEL}:poet", "default:poet", "/models/toy:poet"])
def test_an_adapter_is_refused(server: Running, path: str, model: str) -> None:
    answer = ask(server, path, {**WITH_A_MODEL[path], "model": model})
    field, message = refusal(answer.json)
    assert (answer.status, field) == (400, "model")
    assert "poet" in message and "LoRA" in message


@pytest.mark.parametrize("path", WITH_A_MODEL)
def test_strict_model_name_answers_404_with_openais_code(path: str) -> None:
    with running_server(ServerSettings(strict_model_name=True), every_task=True) as server:
        assert ask(server, path, {**WITH_A_MODEL[path], "model": MODEL}).status == 200
        assert ask(server, path, WITH_A_MODEL[path]).status == 200
        answer = ask(server, path, {**WITH_A_MODEL[path], "model": "gpt-9"})
        assert answer.status == 404
        if path in OTHER_ERRORS:
            assert OTHER_ERRORS[path] in answer.text and "gpt-9" in refusal(answer.json)[1]
        else:
            assert answer.json["error"]["code"] == "model_not_found"
            assert answer.json["error"]["param"] == "model"


def test_bad_request_has_openais_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HI, temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.body is not None
    flat = ask_flat(client)
    assert (flat["object"], flat["code"], flat["param"]) == ("error", 400, "temperature")


def ask_flat(client: openai.OpenAI) -> dict:
    try:
        client.chat.completions.create(model=MODEL, messages=HI, temperature=-1)
    except openai.BadRequestError as error:
        return error.response.json()
    raise AssertionError("it was accepted")


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_what_is_said_of_a_limit_has_openais_name(limit: str) -> None:
    with running_server() as server:
        body = {"messages": HI, "min_tokens": 9, limit: 4}
        answer = ask(server, "/v1/chat/completions", body).json
        assert answer["param"] == "min_tokens"
        assert answer["message"] == f"min_tokens: 9 is more than {limit}, which is 4"
