"""What answers a chat in these tests, and a terminal to look at."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vivace.chat.backend import Answering, TextChunk

MARKDOWN = (
    "# Gravity\n\nIt is a **force** that " + "pulls things together " * 8 + "\n\n- one\n- two\n"
)


STEERING = "\x1b[2J\x1b]52;c;AAAA\x07\x9b31m"
"""what clears a screen, fills a clipboard and turns a terminal red"""


class Scripted:
    """Answers "echo: <last message>" in two chunks; may fail or be interrupted behind the first."""

    def __init__(self, trouble: BaseException | None = None, *, cut: bool = False) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.settings: list[dict[str, float]] = []
        self.trouble = trouble
        self.cut = cut

    def describe(self) -> str:
        return "scripted"

    def answer(self, messages: list[dict[str, str]], settings: Mapping[str, float]) -> Answering:
        self.asked.append(messages)
        self.settings.append(dict(settings))
        yield TextChunk(text="echo: ", tokens=1)
        if self.trouble is not None:
            raise self.trouble
        yield TextChunk(text=messages[-1]["content"], tokens=2, cut=self.cut)


class Handler(BaseHTTPRequestHandler):
    """A server of chat completions; some messages have answers of their own."""

    seen: list[dict[str, Any]] = []
    go_on = threading.Event()
    """lets an answer to "paced" end"""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/closed") and self.headers["Authorization"] != "Bearer secret":
            self._send(401, b'{"error": {"message": "no key"}}')
            return
        if self.path.startswith("/hostile"):
            self._send(200, json.dumps({"data": [{"id": f"toy{STEERING}"}]}).encode())
            return
        name = "m\n" * 100_000 if self.path.startswith("/endless") else "toy"
        self._send(200, json.dumps({"data": [{"id": name}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.seen.append({**body, "key": self.headers["Authorization"]})
        asked = body["messages"][-1]["content"]
        if asked == "bad":
            self._send(400, b'{"error": {"message": "messages: refused"}}')
        elif asked == "cut":
            self._send(200, b'data: {"choices": [{"delta": {"content": "He"}}]}\n\n')
        elif asked.startswith("status "):
            self._send(400, asked.removeprefix("status ").encode("utf-8", "surrogateescape"))
        elif asked.startswith("event "):
            data = f"data: {asked.removeprefix('event ')}\n\ndata: [DONE]\n\n"
            self._send(200, data.encode("utf-8", "surrogateescape"))
        elif asked == "odd":
            self._send(200, b"data: <html>\n\n")
        elif asked == "slow":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'data: {"choices": [{"delta": {"content": "Wait"}}]}\n\n')
            self.rfile.read(1)  # until the client goes away
        elif asked in ("paced", "late"):
            if asked == "paced":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'data: {"choices": [{"delta": {"content": "First "}}]}\n\n')
            Handler.go_on.wait(60)
            if asked == "late":
                self.send_response(200)
                self.end_headers()
            self.wfile.write(b'data: {"choices": [{"delta": {"content": "second"}}]}\n\n')
            self.wfile.write(b"data: [DONE]\n\n")
        elif asked == "markdown":
            self._stream([MARKDOWN[at : at + 5] for at in range(0, len(MARKDOWN), 5)])
        else:
            self._stream(["Hé", "llo"])

    def _stream(self, texts: list[str]) -> None:
        events: list[Any] = [{"choices": [{"delta": {"content": text}}]} for text in texts]
        events.append({"choices": [], "usage": {"completion_tokens": 7}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._send(200, "".join([*lines, "data: [DONE]\n\n"]).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


class Terminal:
    """As much of a terminal as answers use. `rewritten`: lines that were written again though they
    had not changed."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        self.rewritten: list[str] = []
        self._row = self._column = 0
        self._before: str | None = None
        """what the row held when the cursor came to write there"""

    def write(self, text: str) -> int:
        for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
            if piece == "\n":
                self._down()
            elif piece == "\r":
                self._column = 0
            elif piece.startswith("\x1b["):
                self._obey(piece[2:-1], piece[-1])
            else:
                self._put(piece)
        return len(text)

    def flush(self) -> None:
        pass

    def resize(self, width: int) -> None:
        """What is too long for the new width goes on in further rows."""
        self.width = width
        parts = [range(0, max(len(row.rstrip()), 1), width) for row in self.rows]
        self.rows = [
            row[begin : begin + width]
            for row, begins in zip(self.rows, parts, strict=True)
            for begin in begins
        ]
        self._move(len(self.rows) - 1)

    @property
    def text(self) -> list[str]:
        rows = [row.rstrip() for row in self.rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _down(self) -> None:
        if self._before and self._before == self.rows[self._row]:
            self.rewritten.append(self._before)
        self._move(self._row + 1)
        if self._row == len(self.rows):
            self.rows.append("")

    def _move(self, row: int) -> None:
        self._row, self._column, self._before = row, 0, None

    def _put(self, piece: str) -> None:
        row = self.rows[self._row]
        if self._before is None:
            self._before = row
        end = self._column + len(piece)
        assert end < self.width, "the terminal would break this line"
        self.rows[self._row] = row[: self._column] + piece + row[end:]
        self._column = end

    def _obey(self, number: str, what: str) -> None:
        if what == "A":
            column = self._column
            self._move(max(0, len(self.rows) - self.height, self._row - int(number)))
            self._column = column
        elif what == "J":
            del self.rows[self._row + 1 :]
            self.rows[self._row] = self.rows[self._row][: self._column]
        elif what == "K":
            self.rows[self._row] = self.rows[self._row][: self._column]
        else:
            assert what == "m", f"unexpected code {what}"
