"""What the HTTP layer needs from a `Config`, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vivace.config import Config, public
from vivace.config.secret import Secret

DEFAULT_BODY_LIMIT = 16 << 20
KEEP_ALIVE = 75.0
HEALTH_TIMEOUT = 20.0
STREAM_HIGH_WATER = 256 << 10
STREAM_HOLD_LIMIT = 8 << 20


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Times in seconds, sizes in bytes. `public` is the configuration without secrets."""

    api_key: str | None = None
    admin_api_key: str | None = None
    root_path: str = ""
    cache_report: bool = False
    strict_model_name: bool = False
    stream_output: bool = False
    metrics: bool = False
    log_requests: bool = False
    log_requests_level: int = 2
    log_requests_format: str = "text"
    log_requests_targets: tuple[str, ...] = ()
    access_log_level: str = "info"
    body_limit: int = DEFAULT_BODY_LIMIT
    bodies_limit: int = 8 * DEFAULT_BODY_LIMIT
    """Of all bodies that arrive or are being decoded; see `BodyBudget`."""
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
    max_batch: int = 1024
    """Sequences (prompts times n) one HTTP request may ask for."""
    public: dict[str, Any] = field(default_factory=dict)


def settings_of(config: Config) -> ServerSettings:
    """Pick the HTTP settings out of a resolved configuration."""
    http, logging = config.http, config.logging
    return ServerSettings(
        api_key=revealed(http.api_key),
        admin_api_key=revealed(http.admin_api_key),
        root_path=(http.fastapi_root_path or "").rstrip("/"),
        cache_report=http.enable_cache_report,
        strict_model_name=http.strict_model_name,
        stream_output=config.runtime.stream_output,
        metrics=logging.enable_metrics,
        log_requests=logging.log_requests,
        log_requests_level=logging.log_requests_level,
        log_requests_format=logging.log_requests_format,
        log_requests_targets=logging.log_requests_target or (),
        access_log_level=logging.log_level_http or logging.log_level,
        health_timeout=float(config.environment.get("SGLANG_HEALTH_CHECK_TIMEOUT", HEALTH_TIMEOUT)),
        keepalive_timeout=float(config.environment.get("SGLANG_TIMEOUT_KEEP_ALIVE", KEEP_ALIVE)),
        public=public(config),
    )


def revealed(secret: Secret | None) -> str | None:
    """The key itself: it is compared here and shown nowhere."""
    return secret.reveal() if secret else None
