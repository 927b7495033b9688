"""A server that speaks OpenAI's chat completions answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from vivace.chat.backend import NO_LIMIT, Answering, ChatError, Message, Settings, TextChunk
from vivace.config.process_environment import GIVE_A_KEY
from vivace.errors import why_no_answer
from vivace.terminal import shown

ANSWER_SECONDS = 600.0
"""for each part of an answer; the first one waits for a whole prompt"""
CONTACT_SECONDS = 60.0
"""for a connection, and for the list of models, which no server computes"""
SILENT_SECONDS = 3.0
"""of waiting for a server that has not answered yet, until it is said"""
LARGEST_LIST = 4 << 20
"""bytes of a list of models"""
LONGEST_LINE = 16 << 20
"""bytes of a line of an answer"""
LONGEST_ANSWER = 16 << 20
"""characters; the longest context of today's models holds a quarter of it"""
LARGEST_ERROR = 65536
"""bytes that are read of one"""
NO_ANSWER = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""what decoding says of bytes that are no `Event`"""


class EventDelta(msgspec.Struct):
    content: str | None = None


class EventChoice(msgspec.Struct):
    delta: EventDelta | None = None
    finish_reason: str | None = None


class EventUsage(msgspec.Struct):
    completion_tokens: int | None = None


class Event(msgspec.Struct):
    """What is read of a chunk of a chat completion; a server may be anybody's."""

    choices: list[EventChoice] | None = None
    usage: EventUsage | None = None
    error: Any = None


class ErrorStatus(ChatError):
    """The server answers with an error."""


class RemoteBackend:
    """`url` is an `http_address`, it may have a path prefix; `model`: the server's first one when
    None. `tell` gets what is waited for when that takes long. Raises ChatError when the server does
    not answer."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        model: str | None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._url = url
        self._tell = tell
        self._answered = False
        self._model = model or self._first_model()

    def describe(self) -> str:
        return f"{shown(self._model)} at {self._url}"

    def answer(self, messages: list[Message], settings: Settings) -> Answering:
        given = dict(settings)
        if given.get("max_tokens") == NO_LIMIT:
            del given["max_tokens"]
        body = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **given,
        }
        if not self._answered:
            self._contact()
        with self._response(
            "POST", "/v1/chat/completions", ANSWER_SECONDS, json.dumps(body)
        ) as response:
            try:
                yield from read_chunks(events(response))
            except NO_ANSWER as error:
                raise ChatError(f"{self._url} sends what is no answer: {error}") from None

    def _contact(self) -> None:
        """Raises ChatError when nobody is there; tells of a server that lists other models only,
        for many a server answers with the one it has, whatever name it is given."""
        with contextlib.suppress(ErrorStatus):
            models = self._models()
            if models and self._model not in models:
                others = shown(", ".join(models[:3]))
                self._tell(f"{self._url} does not list {self._model}; it lists {others}")

    def _first_model(self) -> str:
        for model in self._models():
            return model
        raise ChatError(f"{self._url}: /v1/models lists no model; use --model")

    def _models(self) -> list[str]:
        """The names that the server lists; none if what it answers is no list."""
        with self._response("GET", "/v1/models", CONTACT_SECONDS) as response:
            data = response.read(LARGEST_LIST)
        try:
            return [str(model["id"]) for model in json.loads(data)["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []

    @contextlib.contextmanager
    def _response(
        self, method: str, path: str, seconds: float, body: str | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONTACT_SECONDS)
        try:
            with self._said_when_silent():
                connection.connect()
                connection.sock.settimeout(seconds)
                connection.request(method, self._prefix + path, body, self._headers)
                response = connection.getresponse()
            if response.status != 200:
                raise ErrorStatus(error_text(response))
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(
                f"{self._url} does not answer ({why_no_answer(error)}). Start a server with "
                "`vivace serve`, name another with --url, or use `vivace chat --local`."
            ) from error
        except (ValueError, OverflowError) as error:  # http.client, of lengths that cannot be
            raise ChatError(f"{self._url} sends what is no answer: {error}") from error
        finally:
            connection.close()

    @contextlib.contextmanager
    def _said_when_silent(self) -> Iterator[None]:
        """Whose first answer takes long may be no server at all."""
        if self._answered:
            yield
            return
        words = f"waiting for {self._url}, which has not answered yet; Ctrl-C ends it"
        timer = threading.Timer(SILENT_SECONDS, self._tell, (words,))
        timer.daemon = True
        timer.start()
        try:
            yield
            self._answered = True
        finally:
            timer.cancel()


def events(response: http.client.HTTPResponse) -> Iterator[Event]:
    """The data of server-sent events, up to [DONE]."""
    while line := response.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ChatError(f"the answer broke off: a line has more than {LONGEST_LINE:,} bytes")
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield msgspec.json.decode(data, type=Event)
    raise ChatError("the answer broke off: the connection ended before its end")


def read_chunks(found: Iterator[Event]) -> Iterator[TextChunk]:
    count = length = 0
    for event in found:
        if event.error is not None:
            raise ChatError(error_message(event.error))
        usage = event.usage or EventUsage()
        choice = event.choices[0] if event.choices else EventChoice()
        text = (choice.delta.content if choice.delta else None) or ""
        length += len(text)
        if length > LONGEST_ANSWER:
            raise ChatError(f"the answer broke off: it has more than {LONGEST_ANSWER:,} characters")
        count = usage.completion_tokens or count + bool(text)
        yield TextChunk(text=text, tokens=count, cut=choice.finish_reason == "length")


def error_message(error: Any) -> str:
    """What an error says, whatever its form."""
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def error_text(response: http.client.HTTPResponse) -> str:
    data = response.read(LARGEST_ERROR)
    try:
        found = json.loads(data)
        message = found.get("message") or error_message(found["error"])
    except (ValueError, AttributeError, KeyError, RecursionError):
        message = data[:200].decode("utf-8", "replace")
    advice = f"; {GIVE_A_KEY}" if response.status == 401 else ""
    return f"the server answers {response.status}: {message or response.reason}{advice}"
