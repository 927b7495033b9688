"""The worst bodies a route can be sent, made from the type hints of the struct it accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from vivace.requests.embeddings import EncodeRequest
from vivace.requests.schema import GenerateRequest
from vivace.server.apis.anthropic_schema import CountTokensRequest, MessagesRequest
from vivace.server.apis.ollama_schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from vivace.server.apis.responses_schema import ResponsesRequest
from vivace.server.apis.vertex import VertexRequest
from vivace.server.classify import ClassifyRequest
from vivace.server.openai.embeddings import EmbeddingRequest
from vivace.server.openai.schema import ChatRequest, CompletionRequest
from vivace.server.rerank import RerankRequest
from vivace.server.route import FULL, Route
from vivace.server.routes import ROUTES
from vivace.server.schema import (
    AbortRequest,
    AddExternalCorpus,
    ConfigureLogging,
    DetokenizeRequest,
    ParseFunctionCallRequest,
    RemoveExternalCorpus,
    SeparateReasoningRequest,
    TokenizeRequest,
)
from vivace.server.scores import ScoreRequest

TURN = {"role": "user", "content": "a"}
ONE = {"max_new_tokens": 1}
TOOL = {"type": "function", "function": {"name": "f"}}
TOOLS = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(2000)]
LEAST: dict[Any, dict[str, Any]] = {
    GenerateRequest: {"text": "a", "sampling_params": ONE},
    CompletionRequest: {"prompt": "a", "max_tokens": 1},
    ChatRequest: {"messages": [TURN], "max_tokens": 1},
    MessagesRequest: {"messages": [TURN], "max_tokens": 1},
    ResponsesRequest: {"input": "a", "max_output_tokens": 1},
    VertexRequest: {"instances": [{"text": "a"}], "parameters": {"sampling_params": ONE}},
    OllamaChatRequest: {"messages": [TURN], "options": {"num_predict": 1}},
    OllamaGenerateRequest: {"prompt": "a", "options": {"num_predict": 1}},
    OllamaEmbedRequest: {"input": "a"},
    OllamaEmbeddingsRequest: {"prompt": "a"},
    OllamaShowRequest: {},
    CountTokensRequest: {"messages": [TURN]},
    EncodeRequest: {"text": "a"},
    EmbeddingRequest: {"input": "a"},
    ClassifyRequest: {"input": "a"},
    ScoreRequest: {"query": "a", "items": ["b"], "label_token_ids": [1]},
    RerankRequest: {"query": "a", "documents": ["b"]},
    TokenizeRequest: {"prompt": "a"},
    DetokenizeRequest: {"tokens": [1]},
    ParseFunctionCallRequest: {"text": "a", "tools": [TOOL], "tool_call_parser": "hermes"},
    SeparateReasoningRequest: {"text": "a", "reasoning_parser": "qwen3"},
    AbortRequest: {"rid": "nobody"},
    AddExternalCorpus: {"corpus_id": "a", "token_chunks": [[1]]},
    RemoveExternalCorpus: {"corpus_id": "a"},
    ConfigureLogging: {},
}
"""A small good body of every struct."""

TEXTS = ["some words of a prompt, " * 16] * 1024
PARTS = [{"type": "text", "text": "a"}] * 2048
LEGAL: dict[Any, list[dict[str, Any]]] = {
    GenerateRequest: [
        {"text": TEXTS, "sampling_params": ONE},
        {"input_ids": [list(range(100, 1100))] * 512, "sampling_params": ONE},
        {"text": "a", "sampling_params": {**ONE, "n": 128, "logit_bias": {"5": 1.0}}},
    ],
    CompletionRequest: [
        {"prompt": TEXTS, "max_tokens": 1},
        {"prompt": [list(range(100, 1100))] * 512, "max_tokens": 1},
    ],
    ChatRequest: [
        {"messages": [TURN] * 1200, "max_tokens": 1},
        {
            "messages": [{**TURN, "content": [{"type": "text", "text": "a"}] * 2048}],
            "max_tokens": 1,
        },
        {"messages": [TURN], "max_tokens": 1, "tools": TOOLS},
    ],
    ResponsesRequest: [
        {"input": [TURN] * 1200, "max_output_tokens": 1},
        {
            "input": [{**TURN, "content": [{"type": "input_text", "text": "a"}] * 2048}],
            "max_output_tokens": 1,
        },
    ],
    VertexRequest: [
        {"instances": [{"text": text} for text in TEXTS], "parameters": {"sampling_params": ONE}}
    ],
    OllamaChatRequest: [{"messages": [TURN] * 1200, "options": {"num_predict": 1}}],
    OllamaGenerateRequest: [{"prompt": "a " * 200, "options": {"num_predict": 1}}],
    OllamaEmbedRequest: [{"input": TEXTS}],
    OllamaEmbeddingsRequest: [{"prompt": "a " * 200}],
    OllamaShowRequest: [{}],
    MessagesRequest: [
        {"messages": [TURN] * 1200, "max_tokens": 1},
        {"messages": [{**TURN, "content": PARTS}], "max_tokens": 1},
    ],
    CountTokensRequest: [{"messages": [TURN] * 1200}, {"messages": [{**TURN, "content": PARTS}]}],
    EncodeRequest: [{"text": TEXTS}, {"input_ids": [list(range(100, 1100))] * 512}],
    EmbeddingRequest: [{"input": TEXTS}, {"input": [list(range(100, 1100))] * 512}],
    ClassifyRequest: [{"input": TEXTS}, {"input": [list(range(100, 1100))] * 512}],
    ScoreRequest: [{"query": "a", "items": TEXTS, "label_token_ids": list(range(200))}],
    RerankRequest: [{"query": "a", "documents": TEXTS}],
    TokenizeRequest: [{"prompt": TEXTS}, {"messages": [TURN] * 1200}, {"prompt": "7 " * 100_000}],
    DetokenizeRequest: [{"tokens": [300] * 1_000_000}, {"tokens": [[300] * 900] * 1024}],
    ParseFunctionCallRequest: [
        {
            "text": '<tool_call>{"name": "f", "arguments": {"a": [1, 2]}}</tool_call> ' * 5000,
            "tools": TOOLS,
            "tool_call_parser": "hermes",
        },
        {"text": "[f(" * 100_000, "tools": [TOOL], "tool_call_parser": "pythonic"},
        {"text": "<function=f>" * 30_000, "tools": [TOOL], "tool_call_parser": "qwen3_coder"},
    ],
    SeparateReasoningRequest: [
        {"text": "<think>" + "a < b " * 100_000, "reasoning_parser": "qwen3"}
    ],
    AbortRequest: [{"rid": "x" * 60_000}],
    ConfigureLogging: [{}],
    AddExternalCorpus: [],  # no texts without n-gram drafts: tests/server/test_server_corpora.py
    RemoveExternalCorpus: [],
}
"""The largest good bodies of every struct; they are answered with 200."""


def routes_with_bodies() -> list[Route]:
    return [route for route in ROUTES if route.accepts is not None]


def longest_body(route: Route, full: int) -> int:
    """The longest body the route takes."""
    return (full if route.body_limit == FULL else route.body_limit) - 64


def illegal_bodies(route: Route, full: int) -> Iterator[tuple[str, bytes]]:
    """(name, body) of bodies as long as the route takes, one for every type of a field."""
    least, size = LEAST[route.accepts], longest_body(route, full)
    for name, value in worst_fields(route.accepts, size // 2):
        rest = {key: other for key, other in least.items() if key != name.partition(".")[0]}
        yield name, joined(rest, name.partition(".")[0], value)
    yield "unknown", joined(least, "unknown", filled(b"[]", size // 2))
    yield "members", joined(least, "unknown", b"{" + filled(b'"":{}', size // 2)[1:-1] + b"}")
    yield "deep", joined(least, "unknown", b"[" * (size // 3) + b"]" * (size // 3))
    yield "escapes", joined(least, "unknown", b'"' + b"\\n" * (size // 4) + b'"')
    yield "keys", b"{" + filled(b'"k":0', size // 2)[1:-1] + b"}"
    yield "no object", filled(b"[]", size // 2)
    yield "strings side by side", joined(least, "unknown", b'""' * (size // 3))
    yield "keys without values", joined(least, "unknown", b'"":' * (size // 4) + b"1")
    yield "closed too often", b"{" + b"]" * (size // 2)
    yield from list(malformed_bodies(min(size, SMALL)))[::7]


SMALL = 64 << 10
"""Bytes of a body that is decoded at once."""


def malformed_bodies(size: int) -> Iterator[tuple[str, bytes]]:
    """(name, body) of bodies that end where no JSON may, or that nothing closes."""
    for bracket in (b"[", b'{"a":'):
        start = b'{"unknown":' + bracket * 80
        for unit in (b'\\"', b"\\\\", b"\\", b'"', b'""', b'\\"[', b'"\\', b'"[', b"a", b'"{\\"}'):
            for quote in (b'"', b""):
                body = start + quote + unit * (size // len(unit))
                for cut in range(3):
                    yield f"{unit} {quote} {cut}", body[: size - cut]


def worst_fields(struct: Any, size: int) -> Iterator[tuple[str, bytes]]:
    """(field, JSON) for one field of every type: what is listed there, and what never fits."""
    seen: set[str] = set()
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if str(hint) in seen:
            continue
        seen.add(str(hint))
        yield f"{name}.lists", filled(b"[]", size)
        for number, entry in enumerate(dict.fromkeys(entries(hint))):
            yield f"{name}.{number}", filled(entry, size)
        for inner in dict.fromkeys(structs(hint)):
            for part, value in worst_fields(inner, size - 100):
                least = json.dumps({"role": "user", "type": "text"})[1:-1].encode()
                key = part.partition(".")[0].encode()
                yield f"{name}.{part}", b'[{%b,"%b":%b}]' % (least, key, value)


def entries(hint: Any) -> Iterator[bytes]:
    """The smallest entries of the lists a hint allows."""
    for choice in (hint, *get_args(hint)):
        listed = getattr(choice, "__origin__", choice)
        if get_origin(listed) is list:
            for entry in (get_args(listed)[0], *get_args(get_args(listed)[0])):
                yield smallest(entry)


def smallest(hint: Any) -> bytes:
    kind = get_origin(getattr(hint, "__origin__", hint)) or hint
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return b'{"role":"user","type":"text","content":"a"}'
    return {str: b'"a"', list: b"[1]", dict: b"{}", bool: b"true"}.get(kind, b"1")


def structs(hint: Any) -> Iterator[Any]:
    """The structs inside of a hint."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in (*get_args(hint), *get_args(getattr(hint, "__origin__", None))):
        yield from structs(inner)


def filled(entry: bytes, size: int) -> bytes:
    """A list of as many entries as fit."""
    return b"[" + b",".join([entry] * (size // (len(entry) + 1))) + b"]"


def joined(rest: dict[str, Any], name: str, value: bytes) -> bytes:
    before = json.dumps(rest)[1:-1].encode()
    return b"{" + before + (b"," if before else b"") + b'"%b":%b}' % (name.encode(), value)
