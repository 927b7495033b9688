"""Conversations, commands, one question, pipes: what is asked, shown and returned."""

from __future__ import annotations

import argparse
import http.client
import io
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from chat_kit import STEERING, Handler, Scripted, serving
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from vivace.arguments import http_address
from vivace.chat import lines as lines_module
from vivace.chat import remote
from vivace.chat.backend import SETTINGS, ChatError
from vivace.chat.conversation import Conversation
from vivace.chat.lines import Lines
from vivace.chat.remote import NO_ANSWER, RemoteBackend, events, read_chunks
from vivace.chat.screen import PassingScreen
from vivace.chat.session import Session
from vivace.commands.chat import main
from vivace.config.process_environment import GIVE_A_KEY, KEY_VARIABLES


@pytest.fixture
def server() -> Iterator[str]:
    with serving() as url:
        yield url


def talk(backend: Scripted, lines: list[Any], system: str = "") -> tuple[str, str, Conversation]:
    """(the answers, what was told besides, the conversation)"""
    feed = iter(lines)

    def ask(_: str) -> str:
        try:
            line = next(feed)
        except StopIteration:
            raise EOFError from None
        if isinstance(line, BaseException):
            raise line
        return line

    out, told, conversation = io.StringIO(), io.StringIO(), Conversation(system=system)
    console = Console(file=told, width=200)
    settings: dict[str, float] = {"max_tokens": 9}
    session = Session(backend, conversation, settings, lambda: PassingScreen(out), console)
    session.run(Lines(ask))
    return out.getvalue(), told.getvalue(), conversation


def contents(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


def test_conversation_and_commands() -> None:
    backend = Scripted()
    lines = ["hi", "two \\", "lines", KeyboardInterrupt(), "/reset", "again", "/exit", "never"]
    out, _, _ = talk(backend, lines, system="be nice")
    assert out == "echo: hi\necho: two \nlines\necho: again\n"
    system = {"role": "system", "content": "be nice"}
    assert backend.asked[0] == [system, {"role": "user", "content": "hi"}]
    assert contents(backend.asked[1]) == ["be nice", "hi", "echo: hi", "two \nlines"]
    assert backend.asked[2] == [system, {"role": "user", "content": "again"}]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\\", "b"], "a\nb"),
        (['"""a', "", 'b"""'], "a\n\nb"),
        (['"""', "a", '"""'], "a"),
        (['"""one line"""'], "one line"),
        (['"""a', "the input ends"], "a\nthe input ends"),
        (["a\\"], "a"),
    ],
)
def test_messages_of_several_lines(lines: list[str], message: str) -> None:
    backend = Scripted()
    talk(backend, lines)
    assert [contents(asked) for asked in backend.asked] == [[message]]


@pytest.mark.parametrize("first", ["", "a\\", "word"])
def test_a_message_without_end_is_refused(
    first: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: str
) -> None:
    """What is piped in may be anything; it is not read on for ever."""
    monkeypatch.setattr(lines_module, "LARGEST_INPUT", 1000)
    read = 0

    class Endless(io.TextIOBase):
        def readline(self, most: int = -1) -> str:  # type: ignore[override]
            nonlocal read
            line = (first if first != "word" else "word" * 10_000)[:most]
            read += len(line) + 1
            return f"{line}\n" if len(line) < most else line

    if first == "":
        monkeypatch.setattr("sys.stdin", io.StringIO('"""\n' + "\n" * 5000))
    else:
        monkeypatch.setattr("sys.stdin", Endless())
    assert main(["--url", server]) == 1
    assert "a message has more than 1,000 characters" in capsys.readouterr().err
    assert read < 3000


@pytest.mark.parametrize(("end", "code"), [("", 0), ("\n", 0), ("x\n", 1), ("\nnext", 0)])
def test_the_end_of_a_line_is_none_of_its_characters(
    end: str, code: int, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setattr(lines_module, "LARGEST_INPUT", 1000)
    monkeypatch.setattr("sys.stdin", io.StringIO("x" * 1000 + end))
    assert main(["--url", server]) == code


def test_system_command_starts_anew() -> None:
    for line in ("/system be brief", "/set system be brief"):
        backend = Scripted()
        talk(backend, ["hi", line, "ho"])
        assert contents(backend.asked[1]) == ["be brief", "ho"]


def test_settings_are_sent_from_then_on() -> None:
    backend = Scripted()
    lines = ["a", "/set temperature 0.5", "/set top_k 3", "b", "/set max_tokens", "/set", "c"]
    _, told, _ = talk(backend, lines)
    assert backend.settings == [
        {"max_tokens": 9},
        {"max_tokens": 9, "temperature": 0.5, "top_k": 3},
        {"temperature": 0.5, "top_k": 3},
    ]
    assert "temperature: 0.5" in told and "max_tokens: the model's default" in told
    assert "everything else: the model's default" in told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/clera", "/clera; did you mean /clear?"),
        ("/foo", "/foo; /help"),
        ("/etc/passwd says what?", "behind a space"),
        ("/set temprature 1", "did you mean 'temperature'?"),
        ("/set foo 1", "seed, system"),
        ("/set temperature hot", "'hot' is not a number"),
        ("/set max_tokens 1.5", "not a whole number"),
        ("/set temperature nan", "is not a number"),
        ("/set max_tokens -1", "not possible; it is at least 0"),
        ("/set temperature 9", "not possible; it is at least 0 and at most 2"),
        ("/set temperature inf", "is not a number"),
        ("/set top_p 0", "more than 0 and at most 1"),
        ("/set top_k -2", "at least -1"),
        ("/set repetition_penalty 0", "more than 0 and at most 2"),
        ("/save", "name of a file is missing"),
        ("/regenerate", "nothing has been asked"),
    ],
)
def test_commands_that_are_wrong_say_so_and_ask_nobody(line: str, words: str) -> None:
    backend = Scripted()
    _, told, _ = talk(backend, [line, "hi"])
    assert words in told and len(backend.asked) == 1


def test_every_command_and_setting_is_in_the_help_and_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chat.md").read_text()
    _, told, _ = talk(Scripted(), ["/help"])
    commands = set(re.findall(r"^(/[a-z]+)", told, re.MULTILINE))
    assert len(commands) == 7
    for name in (*commands, *SETTINGS):
        assert name in page and name in told


def test_regenerate_asks_the_same_again() -> None:
    backend = Scripted()
    _, _, conversation = talk(backend, ["a", "b", "/regenerate"])
    assert backend.asked[1] == backend.asked[2]
    assert contents(conversation.turns) == ["a", "echo: a", "b", "echo: b"]


def test_save_writes_a_new_file(tmp_path: Path) -> None:
    text, data = tmp_path / "chat.md", tmp_path / "chat.json"
    _, told, conversation = talk(
        Scripted(), ["hi", f"/save {text}", f"/save {data}", f"/save {text}", "/save /nope/x"]
    )
    assert json.loads(data.read_text()) == conversation.messages()
    assert text.read_text() == "## user\n\nhi\n\n## assistant\n\necho: hi\n"
    assert "exists already" in told and "/nope/x: No such file" in told


def test_interrupt_stops_the_answer_only() -> None:
    backend = Scripted(KeyboardInterrupt())
    out, told, conversation = talk(backend, ["hi", "more"])
    assert out == "echo: \n" * 2 and "[stopped]" in told
    assert conversation.turns[1] == {"role": "assistant", "content": "echo: "}
    assert len(backend.asked) == 2


def test_an_answer_that_is_cut_off_says_so() -> None:
    _, told, _ = talk(Scripted(cut=True), ["hi"])
    assert "cut off after 2 tokens" in told and "max_tokens" in told


@pytest.mark.parametrize(
    ("words", "piped", "asked"),
    [
        (["What", "is it?"], "", "What is it?"),
        (["Sum it up"], "text of a file\n", "text of a file\n Sum it up"),
    ],
)
def test_one_question(
    server: str,
    words: list[str],
    piped: str,
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert main(["--url", server, "--system", "brief", *words]) == 0
    assert capsys.readouterr() == ("Héllo\n", "")
    assert contents(Handler.seen[-1]["messages"]) == ["brief", asked]
    assert Handler.seen[-1]["max_tokens"] == 1024
    assert main(["--url", server, "--max-tokens", "0", *words]) == 0
    assert "max_tokens" not in Handler.seen[-1]


@pytest.mark.parametrize("words", [[""], [" ", ""]])
def test_an_empty_question_is_asked_of_nobody(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", "http://127.0.0.1:9", *words]) == 2
    assert "empty" in capsys.readouterr().err


@pytest.mark.parametrize(("question", "words"), [("bad", "refused"), ("cut", "broke off")])
def test_a_question_without_an_answer_fails(
    server: str,
    question: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["--url", server, question]) == 1
    assert words in capsys.readouterr().err


def test_a_model_in_this_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    words = ["--temperature", "0", "--max-tokens", "4", "What is the capital of France?"]
    assert main(["--local", *words]) == 0
    shown, told = capsys.readouterr()
    assert len(shown) > 5 and "cut off after 4 tokens" in told and "Loading" not in told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--temperature", "hot"], "--temperature: 'hot' is not a number"),
        (["--temperature", "9"], "--temperature: 9 is not possible; it is at least 0 and at most"),
        (["--max-tokens", "-3"], "--max-tokens: -3 is not possible; it is at least 0"),
        (["--min-p", "1.5"], "--min-p: 1.5 is not possible"),
    ],
)
def test_a_setting_that_cannot_be_is_a_wrong_flag(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2 and text in " ".join(capsys.readouterr().err.split())


def test_remote_server(server: str) -> None:
    backend = RemoteBackend(server + "/v1", "secret", None)
    settings = {"temperature": 0.5, "max_tokens": 9}
    chunks = list(backend.answer([{"role": "user", "content": "hi"}], settings))
    assert "".join(chunk.text for chunk in chunks) == "Héllo" and chunks[-1].tokens == 7
    asked = Handler.seen[-1]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("toy", 0.5, 9)
    assert asked["key"] == "Bearer secret" and "top_p" not in asked
    with pytest.raises(ChatError, match="400: messages: "):
        list(backend.answer([{"role": "user", "content": "bad"}], {}))


@pytest.mark.parametrize("size", ["-5", "zz", "99999999999999999999999999"])
def test_a_length_that_cannot_be_is_no_answer(size: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        backend = RemoteBackend(f"http://127.0.0.1:{listener.getsockname()[1]}", None, "toy")

        def answer() -> None:
            head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            for text in (missing, f"{head}{size}\r\ndata: x"):  # of the models, and the answer
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(text.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ChatError):
            list(backend.answer([{"role": "user", "content": "hi"}], {}))
        thread.join()


def controls(text: str) -> list[str]:
    return [c for c in text if c != "\n" and (c < " " or "\x7f" <= c <= "\x9f")]


@pytest.mark.parametrize("words", [[], ["--model", "other"]])
@pytest.mark.parametrize(
    "question",
    [
        f"status {json.dumps({'error': {'message': STEERING}})}",
        f"status {json.dumps({'message': STEERING})}",
        f"status {STEERING}",
        f"event {json.dumps({'error': {'message': STEERING}})}",
        f"event {json.dumps({'error': STEERING})}",
        f"event {json.dumps({'choices': [{'delta': {'content': STEERING}}]})}",
        f"event {json.dumps({'choices': STEERING})}",
    ],
)
def test_no_word_of_a_server_steers_the_terminal(
    server: str,
    question: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor does the name of its model, whether that is taken or another one was asked for."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{question}\n"))
    main(["--url", f"{server}/hostile", *words])
    seen = capsys.readouterr()
    assert "toy\\x1b[2J" in seen.err
    assert controls(seen.err) == controls(seen.out) == []


@pytest.mark.parametrize("words", [[], ["--model", "other"]])
def test_a_name_without_end_is_shortened(
    server: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert main(["--url", f"{server}/endless", *words]) == 0
    assert "left out" in (told := capsys.readouterr().err) and len(told) < 10_000


DEEP = "[" * 100_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just("x") | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from("choices delta content usage completion_tokens error message".split()),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_an_event_of_any_form_is_an_answer_or_an_error(value: object) -> None:
    stream = io.BytesIO(b"data: " + json.dumps(value).encode() + b"\ndata: [DONE]\n")
    try:
        chunks = list(read_chunks(events(cast("http.client.HTTPResponse", stream))))
    except (ChatError, *NO_ANSWER):
        return
    assert all(type(chunk.text) is str and type(chunk.tokens) is int for chunk in chunks)


@pytest.mark.parametrize("data", [DEEP, '{"x": ' + DEEP, '{"error": ' + DEEP, "\udcff", '"\udcff"'])
def test_what_is_no_event_is_an_error(server: str, data: str) -> None:
    for kind in ("event", "status"):
        backend = RemoteBackend(server, None, "toy")
        with pytest.raises(ChatError):
            list(backend.answer([{"role": "user", "content": f"{kind} {data}"}], {}))


@pytest.mark.parametrize("line", [b"data: ", b"x", b": "])
def test_a_line_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(remote, "LONGEST_LINE", 1000)
    with pytest.raises(ChatError, match="1,000"):
        list(events(cast("http.client.HTTPResponse", io.BytesIO(line + b"y" * 10_000))))


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "vivace serve" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("words", [[], ["--model", "toy", "question"]])
def test_a_server_that_never_answers_is_named_and_given_up(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(remote, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(remote, "CONTACT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main([*words, "--url", url]) == 1
    waiting, given_up = capsys.readouterr().err.strip().splitlines()
    assert url in waiting and "Ctrl-C" in waiting
    assert url in given_up and "--url" in given_up


def test_nothing_is_said_of_a_server_that_answers(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one either whose model takes long over an answer."""
    monkeypatch.setattr(remote, "SILENT_SECONDS", 0.3)
    told: list[str] = []
    backend = RemoteBackend(server, None, None, told.append)
    Handler.go_on.clear()
    answer = backend.answer([{"role": "user", "content": "late"}], {})
    threading.Timer(0.6, Handler.go_on.set).start()
    assert [chunk.text for chunk in answer if chunk.text] == ["second"]
    assert told == []


def test_a_server_without_the_model_that_is_named_says_which_it_has(server: str) -> None:
    told: list[str] = []
    listed = RemoteBackend(server, None, None, told.append).describe().split()[0]
    for model, lines in ((listed, 0), ("nobody/nothing", 1)):
        backend = RemoteBackend(server, None, model, told.append)
        assert list(backend.answer([{"role": "user", "content": "hello"}], {}))
        assert len(told) == lines
    assert listed in told[0] and "nobody/nothing" in told[0]


NO_ADDRESSES = [
    "",
    "ftp://x",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:x",
    "http://",
    "http://[::1",
    "http://a b",
    "http://a..b",
    "http://" + "x" * 64,
    "http://caf\udce9",
    "http://127.0.0.1:9?x=1",
]


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_no_address_is_one_line(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--url", address])
    assert stopped.value.code == 2
    assert "--url" in capsys.readouterr().err


@given(st.text(st.characters(codec=None), max_size=20), st.booleans())
@example("münchen", True)
@example("127.0.0.1:30000/ü x", True)
@example("[::1]", True)
def test_any_text_is_an_address_that_can_be_sent_or_none(text: str, scheme: bool) -> None:
    try:
        address = http_address(f"http://{text}" if scheme else text)
    except argparse.ArgumentTypeError:
        return
    assert http_address(address) == address
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80)
    connection.putrequest("GET", parts.path + "/v1/models")
    assert (connection.host, connection.port) == (parts.hostname, parts.port or 80)


@pytest.mark.parametrize("key", ["日本", "a b", "a\nb", "caf\udce9"])
def test_what_is_no_key_is_one_line(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--api-key", key]) == 2
    assert "--api-key: a key is" in capsys.readouterr().err
    if key.isprintable():
        monkeypatch.setenv(KEY_VARIABLES[0], key)
        assert main([]) == 2
        assert f"{KEY_VARIABLES[0]}: a key is" in capsys.readouterr().err


def test_bytes_of_the_command_line_that_are_no_text(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    heard = "grüß".encode().decode("ascii", "surrogateescape")  # as the C locale gives it
    assert main(["--url", server, heard]) == 0
    assert Handler.seen[-1]["messages"][-1]["content"] == "grüß"
    for words in (["caf\udce9"], ["--system", "\udce9", "x"], ["--model", "\udce9", "x"]):
        with pytest.raises(SystemExit) as stopped:
            main(["--url", server, *words])
        assert stopped.value.code == 2
        assert "UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(("data", "code"), [("grüß".encode(), 0), (b"caf\xe9", 1)])
def test_a_question_is_read_in_the_c_locale(
    data: bytes,
    code: int,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    piped = io.TextIOWrapper(io.BytesIO(data), encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", piped)
    assert main(["--url", server, "x"]) == code
    if code:
        assert "is no text" in capsys.readouterr().err
    else:
        assert Handler.seen[-1]["messages"][-1]["content"] == "grüß x"


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ("hi\n", 0, ""),
        ("/foo\n", 1, "/foo"),
        ("hi\nbad\nhi\n", 1, "400: messages: "),
        ("cut\n", 1, "broke off"),
        ("odd\n", 1, "no answer"),
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


def test_bytes_that_are_no_text_end_the_input(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"hi\n\xff\xfe\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", given)
    assert main(["--url", server]) == 1
    assert "standard input is no text" in capsys.readouterr().err.replace("\n", " ")


def test_a_model_path_means_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-path", "/nope"]) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "means --local" in told and "is loaded" not in told and "no such file" in told
    assert main(["--model-path", "/nope", "--url", "http://127.0.0.1:9"]) == 2
    assert "one or the other" in capsys.readouterr().err.replace("\n", " ")
    assert main(["--local", "--api-key", "x"]) == 2
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
