"""What SageMaker and Vertex AI call, and paths that say what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from server_kit import CONTEXT, Running, ask, documents, running_server

from vivace.errors import CannotStart
from vivace.server.apis.anthropic import call_block
from vivace.server.apis.anthropic_schema import AnswerBlock
from vivace.server.apis.chat_run import (
    ResultCall,
    ResultFunction,
    call_arguments,
    own_names,
    renamed,
)
from vivace.server.apis.ollama import show_call
from vivace.server.apis.responses_request import RENAMED_FIELDS
from vivace.server.responses import HTTPError
from vivace.server.route import move_routes
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings, moved_paths

HI: list[Any] = [{"role": "user", "content": "hi"}]
ONE = {"max_new_tokens": 5, "sampling_seed": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


def test_sagemaker(server: Running) -> None:
    assert ask(server, "/ping", method="GET").status == 200
    body = {"messages": HI, "max_tokens": 5, "seed": 0}
    answer = ask(server, "/invocations", body).json
    assert answer["choices"] == ask(server, "/v1/chat/completions", body).json["choices"]
    streamed = ask(server, "/invocations", {**body, "stream": True}).text
    assert documents(streamed)[0]["object"] == "chat.completion.chunk"


def test_paths_may_be_moved() -> None:
    environment = {"AIP_PREDICT_ROUTE": "/v1/a:predict", "SGLANG_OLLAMA_TAGS_ROUTE": "/tags"}
    with running_server(ServerSettings(moved_paths=moved_paths(environment))) as server:
        assert ask(server, "/v1/a:predict", {"instances": []}).json == {"predictions": []}
        assert ask(server, "/vertex_generate", {"instances": []}).status == 404
        assert ask(server, "/tags", method="GET").json["models"]
        assert "/v1/a:predict" in ask(server, "/openapi.json", method="GET").json["paths"]
    with pytest.raises(CannotStart, match="/generate"):
        move_routes(ROUTES, {"/vertex_generate": "/generate"})
    with pytest.raises(CannotStart, match="AIP_PREDICT_ROUTE"):
        move_routes(ROUTES, {"/vertex_generate": "/x", "/api/chat": "/x"})


@pytest.mark.parametrize("instances", [[{"text": "ab"}, {"text": "c"}], [{"input_ids": [65]}]])
def test_vertex(server: Running, instances: list[dict[str, Any]]) -> None:
    body = {"instances": instances, "parameters": {"sampling_params": ONE}}
    found = ask(server, "/vertex_generate", body).json["predictions"]
    (kind,) = instances[0]
    prompts = [instance[kind] for instance in instances]
    same = ask(server, "/generate", {kind: prompts, "sampling_params": ONE}).json
    assert [one["text"] for one in found] == [one["text"] for one in same]
    assert ask(server, "/vertex_generate", {"instances": []}).json == {"predictions": []}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "instances"),
        ({"instances": [{"text": "a"}, {}]}, "instances[1].text"),
        ({"instances": [{"text": "a"}, {"input_ids": [1]}]}, "instances[1].text"),
        ({"instances": [{"input_ids": [1]}, {"input_ids": [999]}]}, "instances[1].input_ids"),
        ({"instances": [{"text": "a", "image_data": "x"}]}, "instances[0].image_data"),
        ({"instances": [{"text": "a", "regex": "a+"}]}, "instances[0].regex"),
        (
            {"instances": [{"text": "a"}], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"instances": [{"text": "a"}], "parameters": {"stream": True}}, "parameters.stream"),
        (
            {"instances": [{"text": "a"}], "parameters": {"sampling_params": {"top_p": 7}}},
            "parameters.sampling_params.top_p",
        ),
        ({"instances": [{"text": "a"}], "parameters": {"rid": 7}}, "parameters.rid"),
        ({"instances": [{"text": "x" * CONTEXT}]}, "instances[0].text"),
    ],
)
def test_vertex_names_the_field(server: Running, body: Any, param: str) -> None:
    answer = ask(server, "/vertex_generate", body)
    assert (answer.status, answer.json["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/audio/transcriptions", "sound"),
        ("/v1/audio/speech", "sound"),
        ("/v1/images/generations", "pictures"),
        ("/v1/realtime", "sound"),
    ],
)
def test_what_is_missing_for_sound_and_pictures_is_told(
    server: Running, path: str, says: str
) -> None:
    answer = ask(server, path, {})
    assert answer.status == 404
    assert "not supported yet" in answer.json["message"] and says in answer.json["message"]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("response_format", "text.format"),
        ("response_format.json_schema.schema.properties", "text.format.schema.properties"),
        ("response_format.json_schema.strict", "text.format.strict"),
        ("response_formats", "response_formats"),
        ("stop[3]", "stop[3]"),
    ],
)
def test_a_field_inside_another_is_named_as_the_body_has_it(name: str, own: str) -> None:
    assert renamed(name, RENAMED_FIELDS) == own


def test_what_the_engine_refuses_is_named_as_the_body_has_it() -> None:
    field = "response_format.json_schema.schema"
    with (
        pytest.raises(HTTPError) as caught,
        own_names(lambda name: renamed(name, RENAMED_FIELDS)),
    ):
        raise HTTPError(400, f"{field}: properties.a.not: no", param=field)
    assert caught.value.message == "text.format.schema: properties.a.not: no"
    assert caught.value.param == "text.format.schema"


@pytest.mark.parametrize("text", ['{"a": ', '{"a": ' + "[" * 5000 + "]" * 5000 + "}", "[]"])
def test_arguments_that_are_no_whole_object_are_one_to_clients(text: str) -> None:
    call = ResultCall(function=ResultFunction(name="look", arguments=text), id="1")
    found = msgspec.Raw(b"{}")
    assert call_arguments(text) == found
    assert call_block(call) == AnswerBlock(type="tool_use", id="1", name="look", input=found)
    assert show_call(call)["function"]["arguments"] == found
