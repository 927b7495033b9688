"""Who can be measured: name -> endpoint, API, port and which control pages it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchBackend:
    """One way to talk to a server."""

    name: str
    path: str
    api_format: Literal["native", "completions", "chat"]
    port: int
    control: bool
    """Has SGLang's pages: /flush_cache, /get_server_info, /get_model_info."""


def _by_name(*backends: BenchBackend) -> dict[str, BenchBackend]:
    return {backend.name: backend for backend in backends}


def _openai(name: str, port: int, *, chat: bool, control: bool = False) -> BenchBackend:
    return BenchBackend(
        name=name,
        path="/v1/chat/completions" if chat else "/v1/completions",
        api_format="chat" if chat else "completions",
        port=port,
        control=control,
    )


def _native(name: str) -> BenchBackend:
    return BenchBackend(name=name, path="/generate", api_format="native", port=30000, control=True)


BACKENDS: dict[str, BenchBackend] = _by_name(
    _native("sglang"),
    _native("sglang-native"),
    _native("vivace"),
    _openai("sglang-oai", 30000, chat=False, control=True),
    _openai("sglang-oai-chat", 30000, chat=True, control=True),
    _openai("vllm", 8000, chat=False),
    _openai("vllm-chat", 8000, chat=True),
    _openai("lmdeploy", 23333, chat=False),
    _openai("lmdeploy-chat", 23333, chat=True),
    _openai("openai", 8000, chat=False),
    _openai("openai-chat", 8000, chat=True),
)

NOT_OFFERED: dict[str, str] = {
    "sglang-embedding": "embeddings have no token times to measure; this client measures text",
    "vllm-embedding": "embeddings have no token times to measure; this client measures text",
    "trt": "the Triton ensemble is not spoken; use its OpenAI front end and --backend openai",
    "gserver": "its protocol was never published",
    "truss": "use the server's OpenAI address and --backend openai",
}
