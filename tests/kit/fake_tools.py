"""A server of tools that speaks MCP, well or badly: on standard streams when it is run, over HTTP
in a test's own process. Nothing but Python is needed to run it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "look",
        "description": "Look up the weather",
        "inputSchema": CITY,
        "annotations": {"readOnlyHint": True},
    },
    *(
        {"name": name, "inputSchema": NOTHING}
        for name in ("fail", "huge", "slow", "garbage", "die")
    ),
]
RESULT = "sun"
FAULT = "FAKE_TOOLS_FAULT"
DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"items": DEEP}
LISTS: dict[str, list[dict[str, Any]]] = {
    "many": [{"name": f"t{i}", "inputSchema": {}} for i in range(10_000)],
    "large": [{"name": "t", "description": "x" * (2 << 20), "inputSchema": {}}],
    "deep": [
        *TOOLS[:1],
        {"name": "d", "inputSchema": DEEP},
        {"name": "no name", "inputSchema": {}},
    ],
    "wrong": [{"name": 3}],
}


def answer(message: dict[str, Any], fault: str = "") -> list[Any]:
    """What the server says to a message: objects, or text that is none; an empty list is nothing.
    SystemExit where it dies."""
    identity, method = message.get("id"), message.get("method")
    if identity is None or method is None:
        return []
    if method == "initialize":
        version = "1066" if fault == "version" else message["params"]["protocolVersion"]
        about = {"name": "fake", "version": "1"}
        found: Any = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": about,
        }
        return [] if fault == "silent" else [reply(identity, found)]
    if method == "tools/list":
        return [reply(identity, {"tools": LISTS.get(fault, TOOLS)})]
    if method != "tools/call":
        return [{"jsonrpc": "2.0", "id": identity, "error": {"code": -32601, "message": "no"}}]
    return call(identity, message["params"]["name"], message["params"]["arguments"])


def call(identity: Any, name: str, arguments: dict[str, Any]) -> list[Any]:
    match name:
        case "look":
            return [reply(identity, text(f"{RESULT} in {arguments.get('city')}"))]
        case "fail":
            return [reply(identity, {**text("no such city"), "isError": True})]
        case "huge":
            return [reply(identity, text("x" * (8 << 20)))]
        case "garbage":
            return ["{no JSON"]
        case "change":
            changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            return [changed, reply(identity, text("done"))]
        case "die":
            raise SystemExit(3)
        case _:
            return []


def reply(identity: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "result": result}


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def encoded(said: Any) -> str:
    return said if isinstance(said, str) else json.dumps(said)


def main() -> None:
    print("a line that is no message", flush=True)
    fault = os.environ.get(FAULT, "")
    for line in sys.stdin:
        if fault == "mute" and '"tools/call"' in line:
            os.close(sys.stdout.fileno())  # it lives on, and says nothing any more
            continue
        for said in answer(json.loads(line), fault):
            print(encoded(said), flush=True)
    sys.stderr.write("bye\n")


if __name__ == "__main__":
    main()
