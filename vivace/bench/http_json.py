"""Small blocking JSON requests, for what happens before and after a measurement."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec

from vivace.bench.errors import BenchError
from vivace.config.process_environment import GIVE_A_KEY
from vivace.errors import why_no_answer


class Unauthorized(BenchError):
    """The server wants a key, or another one."""


ANSWER_LIMIT = 64 << 20
"""Bytes of one answer that are read at most."""


def ask(
    url: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 10.0,
    method: str | None = None,
) -> Any:
    """GET (or POST when there is a body) and decode the JSON answer; BenchError on any failure."""
    answer = request(url, body, headers=headers, timeout=timeout, method=method)
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise BenchError(f"{url} did not answer with JSON: {error}") from error


def request(
    url: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 10.0,
    method: str | None = None,
) -> bytes:
    """The answer's bytes; BenchError when there is none or its status is not 2xx."""
    data = None if body is None else msgspec.json.encode(body)
    if not url.startswith(("http://", "https://")):
        raise BenchError(f"{url!r} is not an http:// or https:// address")
    prepared = urllib.request.Request(url, data=data, headers=dict(headers or {}), method=method)
    if data is not None:
        prepared.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(prepared, timeout=timeout) as answer:
            return answer.read(ANSWER_LIMIT)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise Unauthorized(
                f"{url} answers 401, so the server wants a key: {GIVE_A_KEY}"
            ) from None
        text = error.read(500).decode("utf-8", "replace")
        raise BenchError(f"{url} answered HTTP {error.code}: {text}") from error
    except (OSError, ValueError) as error:
        raise BenchError(f"{url} cannot be reached: {why_no_answer(error)}") from error


def ask_or_none(
    url: str, *, headers: Mapping[str, str] | None = None, timeout: float = 10.0
) -> Any:
    """Like `ask` for a GET, but None when the server has no such page."""
    try:
        return ask(url, headers=headers, timeout=timeout)
    except BenchError:
        return None
