"""The 404 says which path is meant; other errors have what clients know them by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import Running, ask, running_server

from vivace.server.routes import ROUTES
from vivace.server.unknown_paths import ELSEWHERE, MISSING, NOT_YET, SAME, describe_unknown_path

SERVED = [route.path for route in ROUTES]
MEANT = {
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/v1/completions",
    "/models": "/v1/models",
    "/v1/v1/chat/completions": "/v1/chat/completions",
    "/openai/v1/models": "/v1/models",
    "//v1//models": "/v1/models",
    "/V1/Chat/Completions": "/v1/chat/completions",
    "/v1/chat/completion": "/v1/chat/completions",
    "/v1/generate": "/generate",
    "/tokenizer": "/tokenize",
    **SAME,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


def meant(message: str) -> str | None:
    found = re.search(r"did you mean (\S+)\?", message)
    return found and found[1]


def test_the_tables_name_what_there_is_and_is_not() -> None:
    assert set(SAME.values()) <= set(SERVED)
    assert not {*SAME, *NOT_YET, *ELSEWHERE, *MISSING} & set(SERVED)
    assert not set(SAME) & NOT_YET


@pytest.mark.parametrize("path", MEANT)
def test_what_was_meant(path: str, server: Running) -> None:
    answer = ask(server, path, {"a": 1})
    assert answer.status == 404 and meant(answer.json["message"]) == MEANT[path]


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/start_profile", "/v1/moderations"])
def test_what_is_not_supported_yet(path: str, server: Running) -> None:
    assert "not supported yet" in ask(server, path, {}).json["message"]


def test_commands_instead_of_paths(server: Running) -> None:
    """In the form that the API's clients read."""
    answer = ask(server, "/api/pull", {"model": "x"})
    assert answer.status == 404 and "vivace pull" in answer.json["error"]


def test_what_will_not_come_is_not_promised(server: Running) -> None:
    message = ask(server, "/generate_from_file", {}).json["message"]
    assert "yet" not in message and message.endswith("to /generate")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("GET", "/x"), ("POST", "/x"), ("DELETE", "/x"), ("GET", "/x/messages")],
)
def test_no_completions_are_stored(method: str, path: str, server: Running) -> None:
    """As the field `store` is told."""
    answer = ask(server, f"/v1/chat/completions{path}", method=method)
    assert answer.status == 404 and "stores no completions" in answer.json["message"]
    assert ask(server, "/v1/chat/completions", method="PUT").status == 405


def test_a_path_below_another_may_be_missing(server: Running) -> None:
    compacted = ask(server, "/v1/responses/compact", {"input": "a"})
    assert compacted.status == 404 and "truncation" in compacted.json["message"]


def test_a_misspelled_path_is_no_id(server: Running) -> None:
    answer = ask(server, "/v1/responses/input_token", {"input": "a"})
    assert answer.status == 404 and meant(answer.json["message"]) == "/v1/responses/input_tokens"
    for method, path in (("POST", "/v1/responses/resp_1"), ("PUT", "/v1/responses/input_tokens")):
        assert ask(server, path, method=method).status == 405


@given(st.text(max_size=5000))
def test_any_path_has_a_short_message(text: str) -> None:
    message = describe_unknown_path("/" + text, SERVED)
    assert message.startswith("Not found: ") and len(message) < 400
    assert meant(message) is None or meant(message) in SERVED


def test_nothing_like_it_is_proposed() -> None:
    for path in ("/", "/favicon.ico", "/robots.txt", "/v1", "/.env"):
        assert meant(describe_unknown_path(path, SERVED)) is None


@pytest.mark.parametrize(
    "path, body",
    [
        ("/generate", {"text": "x" * 5000}),
        ("/v1/completions", {"prompt": "x" * 5000}),
        ("/v1/completions", {"prompt": [1] * 5000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 5000}]}),
    ],
)
def test_a_prompt_that_is_too_long_has_openais_code(
    path: str, body: dict[str, object], server: Running
) -> None:
    """litellm, LangChain, Pydantic AI and others shorten the conversation when they see these."""
    answer = ask(server, path, body)
    assert answer.status == 400
    assert answer.json["error"]["code"] == "context_length_exceeded" and answer.json["code"] == 400
    assert "longer than the model's context length" in answer.json["message"]


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/generate", "text", lambda text: {"text": text}),
        ("/v1/completions", "prompt", lambda text: {"prompt": text}),
        ("/v1/completions", "prompt", lambda text: {"prompt": [text, "x"]}),
        ("/v1/chat/completions", "messages", chat),
        ("/tokenize", "prompt", lambda text: {"prompt": text}),
        ("/tokenize", "messages", chat),
    ],
)
def test_a_text_is_refused_in_the_field_it_came_in(
    path: str, field: str, body: Callable[[str], Any], server: Running
) -> None:
    answer = ask(server, path, body("x" * 3_000_000))
    if path != "/tokenize" or answer.status != 200:
        assert (answer.status, answer.json["error"]["param"]) == (400, field)


def test_a_byte_order_mark_is_skipped(server: Running) -> None:
    for size in (1, 100_000):  # decoded at once, and in slices
        body = json.dumps({"text": "x", "ignored": "y" * size}).encode()
        assert ask(server, "/generate", b"\xef\xbb\xbf" + body).status == 200


def test_a_body_that_is_not_taken_is_named(server: Running) -> None:
    answer = ask(server, "/v1/models", {"a": 1}, method="GET")
    assert answer.status == 413 and "takes none" in answer.json["message"]
