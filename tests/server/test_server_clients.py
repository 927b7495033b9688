"""The clients that people use talk to the server: a whole answer, a stream, an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from server_kit import EOS, MODEL, Running, ScriptedEngine, running_server

from vivace.server.settings import ServerSettings

HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(api_keys=("secret",))) as running:
        yield running


def test_anthropics_client(server: Running) -> None:
    anthropic: Any = pytest.importorskip("anthropic", reason="pip install anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "messages": HI}
    whole = client.messages.create(**asked, system="be brief")
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 24
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text and final.usage.output_tokens == 24
    assert client.messages.count_tokens(model=MODEL, messages=HI).input_tokens > 2
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**asked, "max_tokens": -1})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="wrong").messages.create(**asked)


def test_openais_client_of_responses() -> None:
    openai: Any = pytest.importorskip("openai", reason="pip install openai")
    settings = ServerSettings(api_keys=("secret",))
    with running_server(settings, ScriptedEngine(lambda _: [*b"Well", EOS])) as server:
        converse(openai, server)


def converse(openai: Any, server: Running) -> None:
    """A conversation of stored responses, each whole, streamed or in the background."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "max_output_tokens": 24}
    whole = client.responses.create(input="hi", instructions="be brief", **asked)
    assert (whole.status, whole.output_text) == ("completed", "Well")
    with client.responses.stream(input="hi", **asked) as stream:
        parts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.output_text == "".join(parts) == "Well"
    again = client.responses.create(input="and?", previous_response_id=whole.id, **asked)
    assert client.responses.retrieve(again.id).output_text == again.output_text
    client.responses.delete(again.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(again.id)
    made = client.responses.create(input="hi", background=True, **asked)
    assert client.responses.cancel(made.id).id == made.id
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="hi", **{**asked, "max_output_tokens": -1})
    assert caught.value.param == "max_output_tokens"


def test_ollamas_client() -> None:
    ollama: Any = pytest.importorskip("ollama", reason="pip install ollama")
    with running_server(every_task=True) as server:
        client = ollama.Client(host=server.url)
        asked: dict[str, Any] = {"model": MODEL, "options": {"num_predict": 24, "seed": 0}}
        whole = client.chat(messages=HI, **asked)
        assert whole.done_reason == "length" and whole.eval_count == 24
        parts = list(client.chat(messages=HI, stream=True, **asked))
        assert "".join(part.message.content for part in parts) == whole.message.content
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        assert client.generate(prompt="hi", **asked).response
        assert client.embed(model=MODEL, input=["a", "b"]).embeddings[1] == [1.0, 98.0, 0.5, -1.25]
        assert client.list().models[0].model == client.ps().models[0].model == MODEL
        assert client.show(MODEL).capabilities
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(model=MODEL, messages=HI, options={"temperature": -1})
        assert caught.value.status_code == 400 and "temperature" in caught.value.error
