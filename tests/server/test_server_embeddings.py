"""/v1/embeddings, /encode, and the hidden states of /generate."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import numpy as np
import openai
import pytest
from server_kit import (
    CONTEXT,
    EOS,
    HIDDEN_SIZE,
    MODEL,
    VOCABULARY,
    Running,
    ScriptedEngine,
    ask,
    events,
    make_vector,
    running_server,
)

from vivace.protocol.messages import Finish
from vivace.protocol.tasks import Embed
from vivace.requests.limits import HIDDEN_STATES
from vivace.server.settings import ServerSettings

GENERATION = {
    "/generate": {"text": "x"},
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
EMBEDDINGS: dict[str, dict[str, Any]] = {"/encode": {"text": "x"}, "/v1/embeddings": {"input": "x"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    task = Embed(pooling="mean", normalize=False)
    with running_server(ServerSettings(cache_report=True), task=task) as running:
        yield running


@pytest.fixture
def generator() -> Iterator[Running]:
    with running_server() as running:
        yield running


def vector(text: str) -> list[float]:
    return make_vector(list(text.encode()))


def test_openais_client_reads_them(server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model=MODEL, input=["ab", "c"], **form)  # type: ignore[arg-type]
        found: list[Any] = [one.embedding for one in answer.data]
        if form.get("encoding_format") == "base64":
            found = [np.frombuffer(base64.b64decode(one), "<f4").tolist() for one in found]
        assert found == [vector("ab"), vector("c")]
        assert [one.index for one in answer.data] == [0, 1]
        assert {one.object for one in answer.data} == {"embedding"}
        assert (answer.object, answer.model) == ("list", MODEL)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)


@pytest.mark.parametrize("given", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_every_form_of_input(server: Running, given: Any) -> None:
    answer = ask(server, "/v1/embeddings", {"input": given})
    assert [one["embedding"] for one in answer.json["data"]] == [vector("ab")]
    field = "text" if isinstance(given[0], str) else "input_ids"
    native = ask(server, "/encode", {field: given}).json
    assert isinstance(native, list) == (given in (["ab"], [[97, 98]]))
    found = native if isinstance(native, list) else [native]
    assert [one["embedding"] for one in found] == [vector("ab")]


def test_the_engine_is_told_how_to_pool(server: Running) -> None:
    ask(server, "/v1/embeddings", {"input": "ab", "dimensions": 2, "priority": 3, "rid": "mine"})
    request = server.engine.requests[-1]
    assert request.task == Embed(pooling="mean", normalize=False, dimensions=2)
    assert (request.rid, request.priority, request.sampling.max_new_tokens) == ("mine", 3, 0)
    answer = ask(server, "/encode", {"text": ["a", "b"], "rid": ["x", "y"], "dimensions": 1})
    assert [one["meta_info"]["id"] for one in answer.json] == ["x", "y"]
    assert [len(one["embedding"]) for one in answer.json] == [1, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("normalize", True),
        ("add_special_tokens", False),
        ("truncate_prompt_tokens", 3),
        ("messages", [{"role": "user", "content": "ab"}]),
        ("lora_path", "x"),
    ],
)
def test_fields_that_would_change_the_vector(server: Running, field: str, value: Any) -> None:
    answer = ask(server, "/v1/embeddings", {"input": "ab", field: value})
    assert (answer.status, answer.json["param"]) == (400, field)
    if isinstance(value, bool):
        assert ask(server, "/v1/embeddings", {"input": "ab", field: not value}).status == 200


@pytest.mark.parametrize("field", ["routed_dp_rank", "data_parallel_rank"])
def test_an_engine_that_is_not_there(server: Running, field: str) -> None:
    assert ask(server, "/encode", {"text": "ab", field: 0}).status == 200
    for rank in (-1, 1, 1 << 70, "x"):
        answer = ask(server, "/encode", {"text": "ab", field: rank})
        assert (answer.status, answer.json["param"]) == (400, field)


def test_meta_info(server: Running) -> None:
    answer = ask(server, "/encode", {"text": "abc", "return_prompt_token_ids": True}).json
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (3, 3, 0)
    assert meta["prompt_token_ids"] == [97, 98, 99] and meta["e2e_latency"] >= 0


def test_a_prompt_may_fill_the_context_and_no_more(server: Running) -> None:
    whole = [65] * CONTEXT
    assert ask(server, "/encode", {"input_ids": whole}).status == 200
    for path, field in (("/encode", "input_ids"), ("/v1/embeddings", "input")):
        answer = ask(server, path, {field: [*whole, 65]})
        assert (answer.status, answer.json["param"]) == (400, field)
        assert answer.json["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("sizes", "taken"), [((1, 3), [1, 3]), ((), [])])
def test_sizes_that_the_model_was_trained_for(sizes: tuple[int, ...], taken: list[int]) -> None:
    with running_server(task=Embed(), dimensions=sizes) as server:
        for size in range(1, HIDDEN_SIZE + 1):
            for path, body in EMBEDDINGS.items():
                answer = ask(server, path, {**body, "dimensions": size})
                assert answer.status == (200 if size in taken else 400), answer.text
                assert size in taken or answer.json["param"] == "dimensions"


BAD: list[tuple[str, Any]] = [
    ("input", None), ("input", 5), ("input", {}), ("input", ""), ("input", []), ("input", [[]]),
    ("input", [1, "a"]), ("input", ["a", [1]]), ("input", [None]), ("input", [{"text": "a"}]),
    ("input", [-1]), ("input", [VOCABULARY]), ("input", [["a"]]), ("input", [True]),
    ("input", ["a", ""]), ("input", ["a"] * 2049),
    ("model", 5), ("model", f"{MODEL}:poet"),
    ("encoding_format", "int8"), ("encoding_format", 1), ("encoding_format", ["float"]),
    ("dimensions", 0), ("dimensions", -1), ("dimensions", HIDDEN_SIZE + 1), ("dimensions", "x"),
    ("dimensions", 1.5), ("user", 5), ("rid", 5), ("rid", ["a", "b"]),
    ("rid", "x" * 600), ("priority", "x"), ("priority", 1 << 40), ("lora_path", "x"),
    ("embed_override_token_id", 0), ("embed_overrides", [[[0.5]]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_fields_are_refused_by_name(server: Running, name: str, value: Any) -> None:
    before = len(server.engine.requests)
    bodies = {"/v1/embeddings": {"input": "ab", name: value}}
    if name not in ("model", "encoding_format", "user"):
        field = "input_ids" if isinstance(value, list) and name == "input" else name
        bodies["/encode"] = {"text": "ab", field: value}
        if name == "input":
            field = "text" if not isinstance(value, list) or "a" in value else "input_ids"
            bodies["/encode"] = {field: value}
    for path, body in bodies.items():
        answer = ask(server, path, body)
        assert answer.status == 400, (path, body, answer.text)
        assert answer.json["error"]["message"] and answer.json["object"] == "error"
        known = {*body, "text"}
        assert answer.json["param"].partition("[")[0] in known, (path, answer.text)
    assert len(server.engine.requests) == before


def test_each_server_refuses_what_the_other_one_does(server: Running, generator: Running) -> None:
    for serves, refused in ((server, GENERATION), (generator, EMBEDDINGS)):
        for path, body in refused.items():
            answer = ask(serves, path, body)
            assert answer.status == 400 and "--is-embedding" in answer.json["message"]
        assert ask(serves, "/health_generate", method="GET").status == 200
        generates = ask(serves, "/model_info", method="GET").json["is_generation"]
        assert generates == (serves is generator)
    assert {type(one.task) for one in server.engine.requests} == {Embed}


def test_failures_and_aborts_are_told() -> None:
    refuse = Finish(type="abort", message="the request queue is full", status=503, retry_after=2)
    with running_server(engine=ScriptedEngine(refuse=refuse), task=Embed()) as full:
        for path, body in EMBEDDINGS.items():
            answer = ask(full, path, body)
            assert answer.status == 503 and answer.headers["Retry-After"] == "2"
    with running_server(
        engine=ScriptedEngine(refuse=Finish(type="abort")), task=Embed()
    ) as aborted:
        for path, body in EMBEDDINGS.items():
            assert ask(aborted, path, body).status == 400


def test_a_client_that_leaves_cancels_its_texts() -> None:
    with running_server(engine=ScriptedEngine(pause=30), task=Embed()) as slow:

        async def leave() -> None:
            async with aiohttp.ClientSession() as session:
                body = {"input": ["a", "b", "c"]}
                asked = asyncio.create_task(session.post(f"{slow.url}/v1/embeddings", json=body))
                while len(slow.engine.requests) < 3:
                    await asyncio.sleep(0.01)
                asked.cancel()

        slow.run(leave())
        slow.until(lambda: len(slow.engine.cancelled) == 3)
        assert slow.frontend.live == 0


# --- hidden states --------------------------------------------------------------------------


def positions(states: list[Any]) -> list[Any]:
    """The position that each made-up state stands for, with the prompt's in a list of their own."""
    prompt, *tokens = states
    return [[one[0] for one in prompt], *(one[0] for one in tokens)]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_hidden_states_of_the_prompt_and_then_of_each_token(generator: Running, count: int) -> None:
    settings = {"max_new_tokens": count}
    body = {"text": "abcde", "sampling_params": settings, "return_hidden_states": True}
    answer = ask(generator, "/generate", body).json
    expected = [[0, 1, 2, 3, 4], *range(5, 5 + max(0, count - 1))]
    assert positions(answer["meta_info"]["hidden_states"]) == expected
    last = [msgspec.json.decode(data) for data in events(ask_stream(generator, body))[:-1]][-1]
    assert last["meta_info"]["hidden_states"] == answer["meta_info"]["hidden_states"]


def ask_stream(server: Running, body: dict[str, Any]) -> str:
    return ask(server, "/generate", {**body, "stream": True}).text


def test_hidden_states_come_with_the_last_event(generator: Running) -> None:
    """All of them with every event would be quadratic."""
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 4}, "return_hidden_states": True}
    shown = [msgspec.json.decode(data) for data in events(ask_stream(generator, body))[:-1]]
    assert len(shown) > 1
    for one in shown:
        ended = one["meta_info"]["finish_reason"] is not None
        assert ("hidden_states" in one["meta_info"]) == ended


def test_streams_of_news_only_show_each_state_once() -> None:
    with running_server(ServerSettings(stream_output=True)) as server:
        body = {"text": "abc", "sampling_params": {"max_new_tokens": 4}}
        text = ask_stream(server, {**body, "return_hidden_states": True})
        shown = [msgspec.json.decode(data)["meta_info"] for data in events(text)[:-1]]
        states = [one for meta in shown for one in meta["hidden_states"]]
        assert positions(states) == [[0, 1, 2], 3, 4, 5]


def test_states_behind_a_stop_are_not_shown(generator: Running) -> None:
    generator.engine.script = lambda request: [*b"xy", EOS, *b"zz"]
    body = {"text": "ab", "sampling_params": {"max_new_tokens": 9, "stop": "y"}}
    answer = ask(generator, "/generate", {**body, "return_hidden_states": True}).json
    assert positions(answer["meta_info"]["hidden_states"]) == [[0, 1], 2]


def test_hidden_states_have_a_flag_and_a_limit() -> None:
    with running_server(returns_hidden_states=False) as server:
        for wanted in (True, [True]):
            answer = ask(server, "/generate", {"text": "a", "return_hidden_states": wanted})
            assert (answer.status, answer.json["param"]) == (400, "return_hidden_states")
            assert "--enable-return-hidden-states" in answer.json["message"]
        answer = ask(server, "/generate", {"text": "a", "return_hidden_states": False})
        assert answer.status == 200 and "hidden_states" not in answer.json["meta_info"]
    with running_server(hidden_size=HIDDEN_STATES // 100) as server:
        answer = ask(server, "/generate", {"text": "a", "return_hidden_states": True})
        assert (answer.status, answer.json["param"]) == (400, "return_hidden_states")
