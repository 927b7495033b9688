"""A scripted server: speaks the native and the OpenAI protocol, computes nothing.

For tests, and to learn what the client itself costs: with no delay its throughput is the client's
limit on this host. `python -m vivace.bench.fake_server --port 30000`. A token is a character.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from vivace.bench.tokenizer import SplitCodec

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Script:
    """How the server behaves. Delays in seconds."""

    first: float = 0.0
    gap: float = 0.0
    per_event: int = 1
    """Tokens per event."""
    fail_every: int = 0
    """Every n-th request is answered with HTTP 500; 0 = none."""
    cut_every: int = 0
    """Every n-th stream ends without its end mark; 0 = none."""
    miscount: int = 0
    """Added to every count of completion tokens: a server that counts wrongly."""
    num_requests: int = 0
    flushed: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """What was asked, in order; kept only when `keep`."""
    keep: bool = False


SCRIPT = web.AppKey("script", Script)


def build_app(script: Script) -> web.Application:
    app = web.Application(client_max_size=1 << 28)
    app[SCRIPT] = script
    app.router.add_post("/generate", generate)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", completions)
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/get_model_info", model_description)
    app.router.add_get("/get_server_info", server_description)
    app.router.add_post("/flush_cache", flush)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", detokenize)
    return app


async def generate(request: web.Request) -> web.StreamResponse:
    script, body = await read_request(request)
    if should_fail(script):
        return web.json_response({"error": {"message": "scripted failure"}}, status=500)
    prompt = body.get("input_ids") or body["text"]
    wanted = int(body["sampling_params"]["max_new_tokens"])

    def event(text: str, count: int, end: bool) -> dict[str, Any]:
        reason = {"type": "length", "length": wanted} if end else None
        meta = {
            "id": str(script.num_requests),
            "prompt_tokens": len(prompt),
            "completion_tokens": count + script.miscount,
            "cached_tokens": 0,
            "finish_reason": reason,
        }
        return {"text": text, "output_ids": [], "meta_info": meta}

    if not body.get("stream"):
        await asyncio.sleep(script.first + script.gap * (wanted - 1))
        return web.json_response(event(answer(wanted), wanted, True))
    stream = await open_stream(request)
    for count in steps(wanted, script):
        await asyncio.sleep(script.first if count <= script.per_event else script.gap)
        await send(stream, event(answer(count), count, count == wanted and not should_cut(script)))
    if not should_cut(script):
        await stream.write(b"data: [DONE]\n\n")
    return stream


async def completions(request: web.Request) -> web.StreamResponse:
    script, body = await read_request(request)
    if should_fail(script):
        return web.json_response({"error": {"message": "scripted failure"}}, status=500)
    chat = "messages" in body
    prompt = SplitCodec().chat(body["messages"]) if chat else body["prompt"]
    wanted = int(body["max_tokens"])
    usage = {"prompt_tokens": len(prompt), "completion_tokens": wanted + script.miscount}

    def choice(text: str, end: bool) -> dict[str, Any]:
        part = {"delta": {"content": text}} if chat else {"text": text}
        return {"choices": [{"index": 0, **part, "finish_reason": "length" if end else None}]}

    if not body.get("stream"):
        part = {"message": {"content": answer(wanted)}} if chat else {"text": answer(wanted)}
        whole = {"index": 0, **part, "finish_reason": "length"}
        return web.json_response({"choices": [whole], "usage": usage})
    stream = await open_stream(request)
    before = 0
    for count in steps(wanted, script):
        await asyncio.sleep(script.gap if before else script.first)
        await send(
            stream, choice(answer(count)[before:], count == wanted and not should_cut(script))
        )
        before = count
    if not should_cut(script):
        await send(stream, {"choices": [], "usage": usage})
        await stream.write(b"data: [DONE]\n\n")
    return stream


async def read_request(request: web.Request) -> tuple[Script, dict[str, Any]]:
    script: Script = request.app[SCRIPT]
    body = msgspec.json.decode(await request.read())
    script.num_requests += 1
    if script.keep:
        script.bodies.append(body)
    return script, body


def should_fail(script: Script) -> bool:
    return script.fail_every > 0 and script.num_requests % script.fail_every == 0


def should_cut(script: Script) -> bool:
    return script.cut_every > 0 and script.num_requests % script.cut_every == 0


def steps(wanted: int, script: Script) -> Sequence[int]:
    """Token counts after each event."""
    return [*range(script.per_event, wanted, script.per_event), wanted]


def answer(tokens: int) -> str:
    return (LETTERS * (tokens // len(LETTERS) + 1))[:tokens]


async def open_stream(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    return stream


async def send(stream: web.StreamResponse, event: dict[str, Any]) -> None:
    await stream.write(b"data: " + msgspec.json.encode(event) + b"\n\n")


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "scripted"}]})


async def model_description(request: web.Request) -> web.Response:
    return web.json_response({"model_path": "", "vocab_size": SplitCodec.vocabulary})


async def server_description(request: web.Request) -> web.Response:
    state = [{"last_gen_throughput": 0.0}]
    return web.json_response(
        {"version": "scripted", "api_key": "never stored", "internal_states": state}
    )


async def flush(request: web.Request) -> web.Response:
    request.app[SCRIPT].flushed += 1
    return web.Response(text="Cache flushed.")


async def tokenize(request: web.Request) -> web.Response:
    body = msgspec.json.decode(await request.read())
    codec = SplitCodec()
    if "messages" in body:
        rows = codec.encode([codec.chat(body["messages"])])
        return web.json_response({"tokens": rows[0], "count": len(rows[0])})
    rows = codec.encode(body["prompt"])
    return web.json_response({"tokens": rows, "count": [len(row) for row in rows]})


async def detokenize(request: web.Request) -> web.Response:
    body = msgspec.json.decode(await request.read())
    return web.json_response({"text": SplitCodec().decode(body["tokens"])})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--first", type=float, default=0.0, help="seconds to the first token")
    parser.add_argument("--gap", type=float, default=0.0, help="seconds between tokens")
    parser.add_argument("--per-event", type=int, default=1, help="tokens per event")
    parser.add_argument("--miscount", type=int, default=0)
    args = parser.parse_args(argv)
    script = Script(
        first=args.first, gap=args.gap, per_event=args.per_event, miscount=args.miscount
    )
    web.run_app(build_app(script), host="127.0.0.1", port=args.port, print=None)


if __name__ == "__main__":
    main()
