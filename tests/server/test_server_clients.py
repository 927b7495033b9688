"""The clients that people use talk to the server: a whole answer, a stream, an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from server_kit import MODEL, Running, running_server

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
