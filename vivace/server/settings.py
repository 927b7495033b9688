"""What the HTTP layer needs from a `Config`, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vivace.config.config import Config
from vivace.config.drafts import drafts_by_model
from vivace.config.environment import switched_on
from vivace.config.exposure import loopback
from vivace.config.serialize import public
from vivace.requests.limits import PROMPTS

DEFAULT_BODY_LIMIT = 16 << 20
KEEP_ALIVE = 75.0
HEALTH_TIMEOUT = 20.0
START_QUEUE_LIMIT = 1024
STREAM_HIGH_WATER = 256 << 10
STREAM_HOLD_LIMIT = 8 << 20
MOVED = {
    "SGLANG_OLLAMA_ROOT_ROUTE": "/",
    "SGLANG_OLLAMA_CHAT_ROUTE": "/api/chat",
    "SGLANG_OLLAMA_GENERATE_ROUTE": "/api/generate",
    "SGLANG_OLLAMA_TAGS_ROUTE": "/api/tags",
    "SGLANG_OLLAMA_SHOW_ROUTE": "/api/show",
    "AIP_PREDICT_ROUTE": "/vertex_generate",
}
"""A variable -> the path that it moves."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Times in seconds, sizes in bytes. `public` is the configuration without secrets."""

    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = ()
    """Names of this server; None: any."""
    root_path: str = ""
    cache_report: bool = False
    strict_model_name: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    """Names of formats, or auto; None: nothing is parsed."""
    forward_unknown_tools: bool = False
    takes_corpora: bool = True
    """Whether what proposes drafts may take texts."""
    stream_output: bool = False
    metrics: bool = False
    log_requests: bool = False
    log_requests_level: int = 2
    log_requests_format: str = "text"
    log_requests_targets: tuple[str, ...] = ()
    access_log_level: str = "info"
    access_log_excluded: tuple[str, ...] = ()
    """Beginnings of paths that get no line."""
    body_limit: int = DEFAULT_BODY_LIMIT
    bodies_limit: int = 8 * DEFAULT_BODY_LIMIT
    """Of all bodies that arrive or are being decoded; see `BodyBudget`."""
    start_queue_limit: int = START_QUEUE_LIMIT
    """Requests that wait for an engine that starts; those beyond are refused."""
    body_timeout: float = 60.0
    header_timeout: float = 20.0
    keepalive_timeout: float = KEEP_ALIVE
    health_timeout: float = HEALTH_TIMEOUT
    control_timeout: float = 10.0
    stream_high_water: int = STREAM_HIGH_WATER
    """Unsent bytes on a connection above which text is held back and coalesced."""
    stream_hold_limit: int = STREAM_HOLD_LIMIT
    """Characters held back for one stream above which its client is given up."""
    stream_stall: float = 30.0
    """Seconds a client may take nothing at all before it is given up."""
    stream_silence: float = 15.0
    """Seconds without news before a stream of an API that has pings gets one."""
    max_batch: int = PROMPTS
    """Sequences (prompts times n) one HTTP request may ask for."""
    moved_paths: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path of the table of routes -> where it is answered instead."""
    public: dict[str, Any] = field(default_factory=dict)


def build_server_settings(config: Config) -> ServerSettings:
    """Pick the HTTP settings out of a resolved configuration."""
    http, logging = config.http, config.logging
    queue = config.schedule.max_queued_requests
    return ServerSettings(
        api_keys=tuple(key.reveal() for key in http.keys),
        admin_api_keys=tuple(key.reveal() for key in http.admin_keys),
        allowed_origins=http.allowed_origins or (),
        allowed_hosts=allowed_hosts(config),
        root_path=(http.fastapi_root_path or "").rstrip("/"),
        cache_report=http.enable_cache_report,
        strict_model_name=http.strict_model_name,
        tool_call_parser=http.tool_call_parser,
        reasoning_parser=http.reasoning_parser,
        forward_unknown_tools=switched_on(config.environment, "SGLANG_FORWARD_UNKNOWN_TOOLS"),
        takes_corpora=bool(config.draft_width) and not drafts_by_model(config),
        stream_output=config.runtime.stream_output,
        metrics=logging.enable_metrics,
        log_requests=logging.log_requests,
        log_requests_level=logging.log_requests_level,
        log_requests_format=logging.log_requests_format,
        log_requests_targets=logging.log_requests_target or (),
        access_log_level=logging.log_level_http or logging.log_level,
        access_log_excluded=http.uvicorn_access_log_exclude_prefixes or (),
        start_queue_limit=START_QUEUE_LIMIT if queue is None else min(queue, START_QUEUE_LIMIT),
        health_timeout=float(config.environment.get("SGLANG_HEALTH_CHECK_TIMEOUT", HEALTH_TIMEOUT)),
        keepalive_timeout=float(config.environment.get("SGLANG_TIMEOUT_KEEP_ALIVE", KEEP_ALIVE)),
        moved_paths=moved_paths(config.environment),
        public=public(config),
    )


def moved_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Where variables put paths."""
    return {path: place for name, path in MOVED.items() if (place := environment.get(name))}


def allowed_hosts(config: Config) -> tuple[str, ...] | None:
    """Names by which a browser may call this server. One that other machines reach has names that
    nobody told us, and a key; they are checked when they are told."""
    http = config.http
    if not http.allowed_hosts and not loopback(http.host):
        return None
    return (http.host, *(http.allowed_hosts or ()))
