"""From a resolved configuration to the application."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from pathlib import Path
from typing import Any, cast

import msgspec
from server_kit import ScriptedEngine, fetch, make_tokenizer

from vivace.checkpoint.source import ModelSource
from vivace.config.config import Config
from vivace.config.parsing import from_arguments
from vivace.frontend.engine_status import EngineView
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import ServedModel
from vivace.protocol.messages import Capacity, Ready
from vivace.server.app import build_app, start_site
from vivace.server.settings import build_server_settings


def make_config(**arguments: Any) -> Config:
    """A Config with these options; what the model is does not matter here."""
    options = from_arguments(**arguments)
    slices = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Config)
        if hasattr(options, field.name)
    }
    source = ModelSource(
        path=Path("/m"),
        format="dummy",
        files=(),
        embedded=False,
        config={},
        generation_config={},
        tokenizer_path=Path("/m"),
    )
    nothing = cast(Any, None)
    return Config(**slices, source=source, facts=nothing, platform=nothing)


def test_settings_follow_the_flags() -> None:
    settings = build_server_settings(
        make_config(
            api_key="user-key",
            admin_api_key="admin-key",
            fastapi_root_path="/llm/",
            enable_cache_report=True,
            enable_metrics=True,
            stream_output=True,
            log_requests=True,
            log_requests_level=1,
            log_level="info",
            log_level_http="warning",
        )
    )
    assert (settings.api_keys, settings.admin_api_keys) == (("user-key",), ("admin-key",))
    assert settings.root_path == "/llm"
    assert settings.cache_report
    assert settings.metrics
    assert settings.stream_output
    assert (settings.log_requests, settings.log_requests_level) == (True, 1)
    assert settings.access_log_level == "warning"


def test_defaults_are_open_and_quiet() -> None:
    settings = build_server_settings(make_config())
    assert (settings.api_keys, settings.admin_api_keys, settings.root_path) == ((), (), "")
    assert not settings.log_requests
    assert settings.access_log_level == "info"


def test_no_more_wait_for_the_engine_than_it_would_let_wait() -> None:
    assert build_server_settings(make_config()).start_queue_limit == 1024
    assert build_server_settings(make_config(max_queued_requests=7)).start_queue_limit == 7


def test_a_server_of_a_real_config_shows_no_secret() -> None:
    config = make_config(api_key="user-key-123", admin_api_key="admin-key-456")
    engine = ScriptedEngine()
    served = ServedModel(name="toy", context=64, vocabulary=258)

    async def run() -> Any:
        frontend = Frontend(served, make_tokenizer(), [EngineView(engine.send)])
        engine.frontend = frontend
        sizes = Capacity(pages=10, page_size=10, rows=2, context=64, vocabulary=258)
        frontend.feed(Ready(epoch=1, capacity=sizes))
        sock = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        runner = await start_site(build_app(frontend, config), sock)
        try:
            headers = {"Authorization": "Bearer user-key-123"}
            return (
                await fetch(url, "GET", "/server_info", headers=headers),
                await fetch(url, "GET", "/server_info"),
            )
        finally:
            await runner.cleanup()
            frontend.close()

    allowed, refused = asyncio.run(run())
    assert refused.status == 401
    assert allowed.status == 200
    assert "key-123" not in allowed.text
    assert "key-456" not in allowed.text
    info = msgspec.json.decode(allowed.text)
    assert info["chunked_prefill_size"] is None
    assert info["schedule_policy"] == "fcfs"
