"""`vivace chat`: talk to a running server, or to a model in this process, from a terminal."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO
from urllib.parse import urlsplit

from rich.console import Console

from vivace.config.process_environment import GIVE_A_KEY, KEY_VARIABLES, client_key
from vivace.errors import CANNOT_START, CannotStart

DEFAULT_URL = "http://127.0.0.1:30000"
HELP = """\
/reset          forget the conversation
/system TEXT    set the system message (empty: none), forget the conversation
/exit           leave (or Ctrl-D)
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer."""

Message = dict[str, str]


class ChatError(Exception):
    """The answer could not be had; the text is for the user."""


@dataclass(frozen=True, kw_only=True)
class Bit:
    """A part of an answer: new text, and how many tokens the answer has so far."""

    text: str
    tokens: int


class Backend(Protocol):
    """Answers a conversation bit by bit. Closing the iterator stops the generation."""

    def answer(self, messages: list[Message]) -> Iterator[Bit]: ...

    def describe(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Sampling settings of the user; None = the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None

    def given(self, names: dict[str, str]) -> dict[str, Any]:
        values = {names[name]: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class RemoteBackend:
    """A server that speaks OpenAI's chat completions. `url` may have a path prefix."""

    def __init__(self, url: str, api_key: str | None, model: str | None, wishes: Wishes) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ChatError(f"{url}: not an http(s) address")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._wishes = wishes
        self._url = url
        self._model = model or self._first_model()

    def describe(self) -> str:
        return f"{self._model} at {self._url}"

    def answer(self, messages: list[Message]) -> Iterator[Bit]:
        body = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._wishes.given(
                {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_tokens"}
            ),
        }
        with self._response("POST", "/v1/chat/completions", json.dumps(body)) as response:
            try:
                yield from _bits_of(_events(response))
            except ValueError as error:
                raise ChatError(f"{self._url} sends what is no JSON: {error}") from None

    def _first_model(self) -> str:
        with self._response("GET", "/v1/models") as response:
            listed = json.loads(response.read())
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ChatError(f"{self._url}: /v1/models lists no model; use --model") from None

    @contextlib.contextmanager
    def _response(
        self, method: str, path: str, body: str | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=600)
        try:
            connection.request(method, self._prefix + path, body, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ChatError(_error_text(response))
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(
                f"{self._url} does not answer ({error}). Start one with `vivace serve`, or use "
                "`vivace chat --local`."
            ) from error
        finally:
            connection.close()


class LocalBackend:
    """A model loaded in this process."""

    def __init__(self, model_path: str | None, wishes: Wishes) -> None:
        from vivace.api import Engine

        self._engine = Engine(model_path, stream_output=True)
        self._wishes = wishes
        if self._engine.tokenizer is None or self._engine.tokenizer.chat is None:
            raise ChatError("the model has no chat template; it is not made for chatting")
        self._template = self._engine.tokenizer.chat

    def describe(self) -> str:
        return f"{self._engine.config.source.path.name} in this process"

    def answer(self, messages: list[Message]) -> Iterator[Bit]:
        from vivace.frontend.errors import BadRequest, EngineUnavailable

        assert self._engine.tokenizer is not None
        prompt = self._template.render(messages)
        sampling = {
            "max_new_tokens": None,
            **self._wishes.given(
                {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_new_tokens"}
            ),
        }
        tokens = self._engine.tokenizer.encode(prompt, add_special_tokens=False)
        try:
            events = self._engine.generate(input_ids=tokens, sampling_params=sampling, stream=True)
            with contextlib.closing(events):  # type: ignore[arg-type]
                for event in events:
                    yield Bit(text=event["text"], tokens=event["meta_info"]["completion_tokens"])  # type: ignore[index]
        except (BadRequest, EngineUnavailable) as error:
            raise ChatError(str(error)) from error


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data of server-sent events, up to [DONE]."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise ChatError("the answer broke off: the connection ended before its end")


def _bits_of(events: Iterator[dict[str, Any]]) -> Iterator[Bit]:
    count = 0
    for event in events:
        if "error" in event:
            raise ChatError(str(event["error"].get("message", event["error"])))
        usage = event.get("usage") or {}
        choices = event.get("choices") or []
        text = (choices[0].get("delta", {}).get("content") or "") if choices else ""
        count = usage.get("completion_tokens") or count + bool(text)
        yield Bit(text=text, tokens=count)


def _error_text(response: http.client.HTTPResponse) -> str:
    data = response.read(65536)
    try:
        found = json.loads(data)
        message = found.get("error", {}).get("message") or found.get("message")
    except (ValueError, AttributeError):
        message = data[:200].decode("utf-8", "replace")
    advice = f"; {GIVE_A_KEY}" if response.status == 401 else ""
    return f"the server answers {response.status}: {message or response.reason}{advice}"


# -- the conversation ----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Conversation:
    """Messages so far, and the commands that change them."""

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def reset(self) -> None:
        self.turns = []


class Chat:
    """Reads lines, shows answers. `out` gets the answers, `console` the rest."""

    def __init__(
        self,
        backend: Backend,
        conversation: Conversation,
        *,
        read: Callable[[str], str],
        out: TextIO,
        console: Console,
    ) -> None:
        self._backend = backend
        self._conversation = conversation
        self._read = read
        self._out = out
        self._console = console
        self._failures = 0

    def run(self) -> int:
        """Until /exit or the end of the input; how many answers could not be had."""
        self._console.print(f"{self._backend.describe()}. /help shows commands.", style="dim")
        while True:
            try:
                line = self._read_message()
            except EOFError:
                return self._failures
            except KeyboardInterrupt:
                self._console.print("\n(/exit or Ctrl-D to leave)", style="dim")
                continue
            if line.startswith("/"):
                if not self._obey(line):
                    return self._failures
            elif line.strip():
                self._exchange(line)

    def _read_message(self) -> str:
        lines = [self._read("> ")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._read(". "))
        return "\n".join(lines)

    def _obey(self, line: str) -> bool:
        """Carry out a command; False when it says to leave."""
        command, _, rest = line.partition(" ")
        if command in ("/exit", "/quit"):
            return False
        if command == "/reset":
            self._conversation.reset()
        elif command == "/system":
            self._conversation.system = rest.strip()
            self._conversation.reset()
        else:
            if command != "/help":
                self._console.print(f"there is no command {command}", style="red", markup=False)
            self._console.print(HELP, style="dim", markup=False)
        return True

    def _exchange(self, text: str) -> None:
        self._conversation.turns.append({"role": "user", "content": text})
        answer, speed, problem = self._show_answer()
        if problem is not None:
            self._failures += 1
            self._console.print(problem, style="red", markup=False)
        if not answer and problem is not None:
            self._conversation.turns.pop()
            return
        self._conversation.turns.append({"role": "assistant", "content": answer})
        self._console.print(speed, style="dim", markup=False)

    def _show_answer(self) -> tuple[str, str, str | None]:
        """(what was shown, a line about its speed, what went wrong)."""
        parts: list[str] = []
        tokens, begin, first = 0, time.monotonic(), 0.0
        problem: str | None = None
        bits = self._backend.answer(self._conversation.messages())
        try:
            for bit in bits:
                first = first or time.monotonic()
                tokens = bit.tokens
                parts.append(bit.text)
                self._out.write(printable(bit.text))
                self._out.flush()
        except KeyboardInterrupt:
            self._out.write(" [stopped]")
        except ChatError as error:
            problem = str(error)
        finally:
            bits.close()  # type: ignore[attr-defined]
        self._out.write("\n")
        return "".join(parts), _speed_line(tokens, begin, first), problem


def _speed_line(tokens: int, begin: float, first: float) -> str:
    now = time.monotonic()
    if tokens < 2 or now <= first:
        return f"{tokens} tokens"
    return (
        f"{tokens} tokens, first after {first - begin:.2f} s, "
        f"then {(tokens - 1) / (now - first):.1f} tok/s"
    )


def printable(text: str) -> str:
    """Text without control characters: an answer must not steer the terminal."""
    return "".join(c for c in text if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f"))


# -- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `vivace chat`. 0; 1 when nothing answers or, of lines that are piped in, any
    answer could not be had."""
    arguments = _parser().parse_args(argv)
    console = Console(stderr=True, highlight=False)
    wishes = Wishes(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        max_tokens=arguments.max_tokens,
    )
    try:
        backend = _backend(arguments, wishes, console)
    except (ChatError, ValueError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return CANNOT_START if isinstance(error, CannotStart) else 1
    _enable_line_editing()
    conversation = Conversation(system=arguments.system or "")
    prompting = sys.stdin.isatty()
    failures = Chat(
        backend,
        conversation,
        read=lambda prompt: input(prompt if prompting else ""),
        out=sys.stdout,
        console=console,
    ).run()
    return 1 if failures and not prompting else 0


def _backend(arguments: argparse.Namespace, wishes: Wishes, console: Console) -> Backend:
    remote = {
        "--url": arguments.url, "--api-key": arguments.api_key, "--model": arguments.model
    }  # fmt: skip
    given = [flag for flag, value in remote.items() if value is not None]
    if not (arguments.local or arguments.model_path):
        key = arguments.api_key or client_key()
        return RemoteBackend(arguments.url or DEFAULT_URL, key, arguments.model, wishes)
    local = "--local" if arguments.local else "--model-path"
    if given:
        raise ChatError(
            f"{local} loads a model in this process, {' and '.join(given)} mean a running server: "
            "give one or the other"
        )
    if not arguments.local:
        text = "--model-path means --local: the model is to be loaded in this process."
        console.print(text, style="dim", markup=False)
    return LocalBackend(arguments.model_path, wishes)


def _enable_line_editing() -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (importing it gives input() history and editing)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vivace chat", description="Talk to a model.", epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--url", help=f"server (default: {DEFAULT_URL})")
    parser.add_argument("--api-key", help=f"bearer key (default: {', '.join(KEY_VARIABLES)})")
    parser.add_argument("--model", help="model name (default: the server's first)")
    parser.add_argument("--local", action="store_true", help="load a model in this process")
    parser.add_argument(
        "--model-path", help="the model of --local, which it implies (default: the embedded one)"
    )
    parser.add_argument("--system", help="system message")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--max-tokens", type=int, help="longest answer in tokens")
    return parser
