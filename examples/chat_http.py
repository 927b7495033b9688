"""A conversation of two turns over HTTP. URL and KEY are variables of the environment."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any

URL = os.environ.get("URL", "http://127.0.0.1:30000")
KEY = os.environ.get("KEY", "")


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    try:
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:  # its body says what to do
        raise SystemExit(f"{URL}: {error}: {error.read().decode(errors='replace')}") from None
    except urllib.error.URLError as error:
        raise SystemExit(f"{URL}: {error}; `vivace serve` starts a server at http://...") from None
    except (ValueError, http.client.InvalidURL) as error:  # of URL or KEY
        raise SystemExit(f"{URL}: {error}; URL is like http://127.0.0.1:30000") from None


def main() -> None:
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    for question in ("What is the capital of France?", "And of Italy?"):
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "temperature": 0, "max_tokens": 24}
        answer = post("/v1/chat/completions", body)
        message = answer["choices"][0]["message"]
        print(f"> {question}\n{message['content']}")
        messages.append({"role": "assistant", "content": message["content"]})
    print(f"({answer['usage']['total_tokens']} tokens)")


if __name__ == "__main__":
    main()
