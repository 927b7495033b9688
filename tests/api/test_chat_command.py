from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console

from vivace.chat import Bit, Chat, ChatError, Conversation, RemoteBackend, Wishes, main, printable
from vivace.config.process_environment import GIVE_A_KEY, KEY_VARIABLES


class Scripted:
    """Answers "echo: <last message>" in two bits; may fail or be interrupted behind the first."""

    def __init__(self, trouble: BaseException | None = None) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.trouble = trouble

    def describe(self) -> str:
        return "scripted"

    def answer(self, messages: list[dict[str, str]]) -> Iterator[Bit]:
        self.asked.append(messages)
        yield Bit(text="echo: ", tokens=1)
        if self.trouble is not None:
            raise self.trouble
        yield Bit(text=messages[-1]["content"], tokens=2)


def converse(backend: Scripted, lines: list[Any], system: str = "") -> tuple[str, Conversation]:
    feed = iter(lines)

    def read(_: str) -> str:
        try:
            line = next(feed)
        except StopIteration:
            raise EOFError from None
        if isinstance(line, BaseException):
            raise line
        return line

    out, conversation = io.StringIO(), Conversation(system=system)
    console = Console(file=io.StringIO())
    Chat(backend, conversation, read=read, out=out, console=console).run()
    return out.getvalue(), conversation


def test_conversation_and_commands() -> None:
    backend = Scripted()
    lines = ["hi", "two \\", "lines", KeyboardInterrupt(), "/reset", "again", "/exit", "never"]
    out, _ = converse(backend, lines, system="be nice")
    assert out == "echo: hi\necho: two \nlines\necho: again\n"
    system = {"role": "system", "content": "be nice"}
    assert backend.asked[0] == [system, {"role": "user", "content": "hi"}]
    assert [m["content"] for m in backend.asked[1]] == ["be nice", "hi", "echo: hi", "two \nlines"]
    assert backend.asked[2] == [system, {"role": "user", "content": "again"}]


def test_system_command_starts_anew() -> None:
    backend = Scripted()
    converse(backend, ["hi", "/system be brief", "ho", "/unknown"])
    assert [m["content"] for m in backend.asked[1]] == ["be brief", "ho"]


def test_interrupt_stops_the_answer_only() -> None:
    backend = Scripted(KeyboardInterrupt())
    out, conversation = converse(backend, ["hi", "more"])
    assert out == "echo:  [stopped]\n" * 2
    assert conversation.turns[1] == {"role": "assistant", "content": "echo: "}
    assert len(backend.asked) == 2


def test_answers_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2J\x07b\n\tc\x9b") == "a[2Jb\n\tc"


class Handler(BaseHTTPRequestHandler):
    seen: list[dict[str, Any]] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/closed") and self.headers["Authorization"] != "Bearer secret":
            self._send(401, b'{"error": {"message": "no key"}}')
            return
        self._send(200, json.dumps({"data": [{"id": "toy"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.seen.append({**body, "key": self.headers["Authorization"]})
        if body["messages"][-1]["content"] == "bad":
            self._send(400, b'{"error": {"message": "messages: refused"}}')
            return
        if body["messages"][-1]["content"] == "cut":
            self._send(200, b'data: {"choices": [{"delta": {"content": "He"}}]}\n\n')
            return
        if body["messages"][-1]["content"] == "odd":
            self._send(200, b"data: <html>\n\n")
            return
        events: list[Any] = [{"choices": [{"delta": {"content": text}}]} for text in ("Hé", "llo")]
        events.append({"choices": [], "usage": {"completion_tokens": 7}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._send(200, "".join([*lines, "data: [DONE]\n\n"]).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_remote_server(server: str) -> None:
    backend = RemoteBackend(server + "/v1", "secret", None, Wishes(temperature=0.5, max_tokens=9))
    bits = list(backend.answer([{"role": "user", "content": "hi"}]))
    assert "".join(bit.text for bit in bits) == "Héllo" and bits[-1].tokens == 7
    asked = Handler.seen[-1]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("toy", 0.5, 9)
    assert asked["key"] == "Bearer secret" and "top_p" not in asked
    with pytest.raises(ChatError, match="400: messages: refused"):
        list(backend.answer([{"role": "user", "content": "bad"}]))


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "vivace serve" in capsys.readouterr().err.replace("\n", " ")
    assert main(["--url", "ftp://x"]) == 1


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ("hi\n", 0, ""),
        ("hi\nbad\nhi\n", 1, "400: messages: refused"),
        ("cut\n", 1, "broke off"),
        ("odd\n", 1, "no JSON"),
        ("", 0, ""),
    ],
)
def test_piped_lines_that_fail_are_in_the_exit_code(
    server: str,
    lines: str,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["--url", server]) == code
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_a_model_path_means_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-path", "/nope"]) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "means --local" in told and "is loaded" not in told and "no such file" in told
    assert main(["--model-path", "/nope", "--url", "http://127.0.0.1:9"]) == 1
    assert "one or the other" in capsys.readouterr().err.replace("\n", " ")
    assert main(["--local", "--api-key", "x"]) == 1
    assert "--local" in capsys.readouterr().err


def test_a_server_with_a_key(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["--url", server + "/closed"]) == 1
    told = capsys.readouterr().err.replace("\n", " ")
    assert "401: no key" in told and GIVE_A_KEY in told
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert main(["--url", server + "/closed"]) == 0
