"""An answer token by token, as server-sent events. URL and KEY are variables of the environment."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

URL = os.environ.get("URL", "http://127.0.0.1:30000")
KEY = os.environ.get("KEY", "")


def stream(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of an answer; leaving the loop closes the connection, which ends the request."""
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    try:
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
        answer = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:  # its body says what to do
        raise SystemExit(f"{URL}: {error}: {error.read().decode(errors='replace')}") from None
    except urllib.error.URLError as error:
        raise SystemExit(f"{URL}: {error}; `vivace serve` starts a server at http://...") from None
    except (ValueError, http.client.InvalidURL) as error:  # of URL or KEY
        raise SystemExit(f"{URL}: {error}; URL is like http://127.0.0.1:30000") from None
    with answer:
        for line in answer:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                return
            if data:
                yield json.loads(data)


def main() -> None:
    body = {
        "messages": [{"role": "user", "content": "Count from one to ten."}],
        "temperature": 0,
        "max_tokens": 32,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for event in stream("/v1/chat/completions", body):
        for choice in event["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
        if event.get("usage"):
            print(f"\n({event['usage']['completion_tokens']} tokens)")


if __name__ == "__main__":
    main()
