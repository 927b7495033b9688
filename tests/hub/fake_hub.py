"""A Hugging Face hub on this machine: the four paths its library uses, with faults on request."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "4" * 40
LARGE = (".safetensors", ".gguf", ".bin")
"""files that lie in LFS"""


@dataclass
class FakeHub:
    """`repositories`: id -> name of file -> content."""

    repositories: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    """files that arrive with other bytes than listed"""
    cut: dict[str, int] = field(default_factory=dict)
    """files whose first transfer breaks off after so many bytes"""
    paused: dict[str, int] = field(default_factory=dict)
    """files whose transfer stands still after so many bytes"""
    said: dict[str, object] = field(default_factory=dict)
    """what stands in the answer about a model or of its files instead"""
    failing: dict[str, int] = field(default_factory=dict)
    """files, "about" or "tree", that are answered with this status"""
    headers: dict[str, str] = field(default_factory=dict)
    """of those answers"""
    encodings: dict[str, str] = field(default_factory=dict)
    """how files, or "about", come: gzip, or another word"""
    refusal: dict[str, str] = field(default_factory=dict)
    """headers of a 403 that answers every question about a model"""
    most: int = 1 << 60
    """bytes of files that are given in one answer; 400 for more"""
    ignores_ranges: bool = False
    """gives the whole file whatever part of it is asked for"""
    etag: str = ""
    """what all files have instead of their own"""
    endless: set[str] = field(default_factory=set)
    """what is sent until the client leaves: names of files, or "about"; "slow": a byte at a time"""
    silent: bool = False
    """accepts and never answers"""
    requests: list[str] = field(default_factory=list)
    """method, path and range of everything that was asked"""
    url: str = ""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(name: str) -> bool:
    return name.endswith(LARGE)


def entry(name: str, data: bytes) -> dict[str, object]:
    """A file in the answer about a model."""
    described: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_blob(data)}
    if is_large(name):
        described["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
    return described


def tree_entry(name: str, data: bytes) -> dict[str, object]:
    described: dict[str, object] = {
        "type": "file",
        "path": name,
        "size": len(data),
        "oid": git_blob(data),
    }
    if is_large(name):
        described["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
    return described


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        while hub.silent:
            time.sleep(0.05)
        for repo_id, files in hub.repositories.items():
            if f"{path}/".startswith(f"/api/models/{repo_id}/"):
                self.about(repo_id, files, path)
                return
            if path.startswith(f"/{repo_id}/resolve/"):
                _, _, name = path.removeprefix(f"/{repo_id}/resolve/").partition("/")
                self.file(name, files, body=body)
                return
        self.send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def about(self, repo_id: str, files: dict[str, bytes], path: str) -> None:
        if repo_id in self.hub.gated:
            self.send(403, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"})
            return
        if self.hub.refusal:
            self.send(403, b"{}", self.hub.refusal)
            return
        rest = path.removeprefix(f"/api/models/{repo_id}").strip("/")
        kind, _, revision = rest.partition("/")
        if revision not in ("", "main", COMMIT):
            self.send(404, b'{"error": "no"}', {"X-Error-Code": "RevisionNotFound"})
        elif "about" in self.hub.endless:
            self.without_end(b" " * (1 if "slow" in self.hub.endless else 1 << 16), {})
        elif (kind or "about") in self.hub.failing:
            self.send(self.hub.failing[kind or "about"], b"", self.hub.headers)
        elif kind == "tree":
            self.send_json([tree_entry(name, data) for name, data in files.items()])
        else:
            siblings = [entry(name, data) for name, data in files.items()]
            described = {"id": repo_id, "sha": COMMIT, "siblings": siblings}
            for key, value in self.hub.said.items():
                for place in (described, *siblings):
                    place.update({key: value} if key in place else {})
            self.send_json(described, self.hub.encodings.get("about", ""))

    def file(self, name: str, files: dict[str, bytes], *, body: bool) -> None:
        if name not in files:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if name in self.hub.failing:
            self.send(self.hub.failing[name], b"", self.hub.headers, body=body)
            return
        data = files[name]
        etag = self.hub.etag or (sha256(data) if is_large(name) else git_blob(data))
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if is_large(name):
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        if body and name in self.hub.endless and self.command == "GET":
            self.without_end(bytes(1 << 16), headers)
            return
        if name in self.hub.damaged:
            data = bytes(len(data))
        asked = "" if self.hub.ignores_ranges else self.headers.get("Range", "")
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin, end = int(first or 0), min(int(last or len(data)) + 1, len(data))
        if body and end - begin > self.hub.most:
            self.send(400, b"", {})
            return
        if self.command == "GET" and name in self.hub.encodings:
            data, asked = self.encode(data, self.hub.encodings[name], headers), ""
            begin, end = 0, len(data)
        if asked:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        self.send(
            206 if asked else 200,
            data[begin:end],
            headers,
            body=body,
            most=self.hub.paused.get(name, self.hub.cut.pop(name, None)) if body else None,
        )
        while body and name in self.hub.paused and self.command == "GET":
            self.wfile.flush()
            time.sleep(0.05)

    def without_end(self, block: bytes, headers: dict[str, str]) -> None:
        """Blocks of an answer that says no length, until the client leaves."""
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        with suppress(OSError):
            while self.hub.endless:
                self.wfile.write(block)
                time.sleep(0.01 if len(block) == 1 else 0)

    def send_json(self, value: object, encoding: str = "") -> None:
        headers = {"X-Repo-Commit": COMMIT}
        self.send(200, self.encode(json.dumps(value).encode(), encoding, headers), headers)

    def encode(self, data: bytes, encoding: str, headers: dict[str, str]) -> bytes:
        headers |= {"Content-Encoding": encoding} if encoding else {}
        return gzip.compress(data) if encoding == "gzip" else data

    def send(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str],
        *,
        body: bool = True,
        most: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(data[:most])
            self.close_connection = most is not None


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle of an answer is part of the tests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub at `hub.url` until the block ends."""
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = HubServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.silent = False
        hub.endless.clear()
        server.shutdown()
        server.server_close()
