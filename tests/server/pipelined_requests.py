"""Many requests in a row over one connection, each sent before the last one is answered: without
the switches between two threads that one request at a time costs."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import BinaryIO

AHEAD = 32 << 10
"""Bytes on their way at most: they fit in the sockets, so neither side waits to send."""


def post_all(port: int, requests: Sequence[tuple[str, bytes]]) -> Iterator[tuple[int, str]]:
    """(status, body) of each (path, body), in their order. Where the server closes the connection
    behind an answer the others are sent over a new one."""
    done = 0
    while done < len(requests):
        sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        with sock, sock.makefile("rb") as answers:
            stays = True
            while stays and done < len(requests):
                batch = next_batch(requests, done)
                sock.sendall(b"".join(batch))
                for _ in batch:
                    status, body, stays = read_answer(answers)
                    yield status, body.decode()
                    done += 1
                    if not stays:
                        break


def next_batch(requests: Sequence[tuple[str, bytes]], done: int) -> list[bytes]:
    batch: list[bytes] = []
    size = 0
    for path, body in requests[done:]:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        batch.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        size += len(batch[-1])
        if size > AHEAD:
            break
    return batch


def read_answer(answers: BinaryIO) -> tuple[int, bytes, bool]:
    """The status, the body, whether the connection stays."""
    status = int(answers.readline().split(None, 2)[1])
    headers: dict[bytes, bytes] = {}
    while line := answers.readline().strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    stays = headers.get(b"connection", b"").lower() != b"close"
    if headers.get(b"transfer-encoding") == b"chunked":
        return status, b"".join(read_chunks(answers)), stays
    return status, answers.read(int(headers[b"content-length"])), stays


def read_chunks(answers: BinaryIO) -> Iterator[bytes]:
    while size := int(answers.readline(), 16):
        yield answers.read(size)
        answers.readline()
    answers.readline()
