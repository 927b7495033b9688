"""Health, facts, metrics, tokenization, administration."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_kit import CONTEXT, MODEL, Running, ScriptedEngine, ask, running_server

import vivace
from vivace.protocol.heartbeat import EngineHeartbeat, EngineProgress
from vivace.protocol.messages import Finish, Request
from vivace.protocol.shared_memory import new_descriptor, reserve
from vivace.server import context
from vivace.server.openapi import document
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(metrics=True, public={"page_size": 16})) as running:
        yield running


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/ping", "/"])
def test_a_ready_server_is_healthy(server: Running, path: str) -> None:
    assert ask(server, path, method="GET").status == 200


def test_health_generate_runs_one_token_through_an_idle_engine() -> None:
    with running_server() as server:
        assert ask(server, "/health_generate", method="GET").status == 200
        (request,) = server.engine.requests
        assert request.sampling.max_new_tokens == 1


def test_many_who_ask_for_health_cost_the_engine_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question for all; a busy engine is not asked at all."""
    monkeypatch.setattr(context, "FRESH", 60.0)  # however long the sixty take
    with running_server(engine=ScriptedEngine(pause=0.3)) as server:
        with ThreadPoolExecutor(20) as pool:
            answers = pool.map(
                lambda _: ask(server, "/health_generate", method="GET").status, range(60)
            )
            assert set(answers) == {200}
        assert len(server.engine.requests) == 1


def test_a_busy_engine_is_not_asked_for_its_health() -> None:
    with running_server() as server:
        ask(server, "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}})
        assert ask(server, "/health_generate", method="GET").status == 200
        assert len(server.engine.requests) == 1


def test_tokens_of_others_answer_for_the_engine() -> None:
    """Behind a queue of long requests the question itself may wait for a long time."""

    class Deaf(ScriptedEngine):
        async def _run(self, request: Request) -> None:
            if not request.rid.startswith("HEALTH_CHECK"):
                await super()._run(request)

    with running_server(engine=Deaf(pause=0.3)) as server, ThreadPoolExecutor(1) as pool:
        generation = {"text": "x", "sampling_params": {"max_new_tokens": 2}}
        answer = pool.submit(ask, server, "/generate", generation)
        server.until(lambda: len(server.engine.requests) == 1)
        assert ask(server, "/health_generate", method="GET").status == 200
        assert len(server.engine.requests) == 2
        server.until(lambda: len(server.engine.cancelled) == 1)
        assert answer.result().status == 200


def test_a_starting_server_is_not_healthy_but_answers() -> None:
    with running_server(ready=False) as server:
        for path in ("/health", "/health_generate", "/ready", "/server_info"):
            answer = ask(server, path, method="GET")
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) >= 1
        for path in ("/model_info", "/get_model_info", "/v1/models"):
            assert ask(server, path, method="GET").status == 200
        assert ask(server, "/tokenize", {"prompt": "x"}).status == 200


def test_a_draining_server_takes_nothing_new() -> None:
    with running_server() as server:
        server.call(server.frontend.drain)
        answer = ask(server, "/generate", {"text": "x"})
        assert answer.status == 503
        assert ask(server, "/ready", method="GET").status == 503


def test_health_generate_fails_when_no_token_comes() -> None:
    engine = ScriptedEngine(silent=True)
    with running_server(ServerSettings(health_timeout=0.2), engine) as server:
        assert ask(server, "/health_generate", method="GET").status == 503
        server.until(lambda: len(engine.cancelled) == 1)


def test_health_generate_that_waits_learns_of_a_stall() -> None:
    """It is told at once, not after the health timeout."""
    engine = ScriptedEngine(silent=True)
    with (
        running_server(ServerSettings(health_timeout=60), engine) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(ask, server, "/health_generate", method="GET")
        server.until(lambda: len(engine.requests) == 1)
        heartbeat, server.frontend.engines[0].progress = shared_heartbeat()
        heartbeat.step(1, 7, -1.0, [])
        answer = asked.result(20)
        assert answer.status == 503 and "no progress" in answer.text


def shared_heartbeat() -> tuple[EngineHeartbeat, EngineProgress]:
    """What an engine in another process would write, and what frontends read of it."""
    memory = reserve(new_descriptor(), 1)
    return EngineHeartbeat(memory.engine()), EngineProgress(memory)


@pytest.mark.parametrize("most_live", [65536, 0], ids=["asked", "no room to ask"])
def test_an_engine_that_computes_long_prompts_is_healthy(most_live: int) -> None:
    """No token comes for minutes, and the question waits behind; whole steps are run."""
    engine = ScriptedEngine(silent=True)
    with (
        running_server(ServerSettings(health_timeout=60), engine) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        heartbeat, server.frontend.engines[0].progress = shared_heartbeat()
        server.frontend.served = replace(server.frontend.served, max_live=most_live)
        heartbeat.step(1, 512, 60.0, [])
        asked = pool.submit(ask, server, "/health_generate", method="GET")
        probe = server.app[context.CONTEXT].probe
        server.until(lambda: probe._question is not None)
        server.call(lambda: None)  # a turn of the loop later it has begun, and waits
        for number in (2, 3):
            assert not asked.done(), "the step may have been nearly over when the question came"
            heartbeat.step(number, 512, 60.0, [])
        assert asked.result(20).status == 200


def test_a_step_longer_than_the_health_timeout_is_no_illness() -> None:
    with running_server(ServerSettings(health_timeout=0.2), ScriptedEngine(silent=True)) as server:
        heartbeat, server.frontend.engines[0].progress = shared_heartbeat()
        heartbeat.step(1, 512, 60.0, [])
        assert ask(server, "/health_generate", method="GET").status == 200
    with running_server(ServerSettings(health_timeout=0.2), ScriptedEngine(silent=True)) as server:
        heartbeat, server.frontend.engines[0].progress = shared_heartbeat()
        heartbeat.idle()
        assert ask(server, "/health_generate", method="GET").status == 503


def test_health_generate_fails_when_the_engine_refuses() -> None:
    engine = ScriptedEngine(refuse=Finish(type="abort", message="broken", status=500))
    with running_server(engine=engine) as server:
        assert ask(server, "/health_generate", method="GET").status == 500


def test_health_generate_takes_a_full_queue_for_life() -> None:
    full = Finish(type="abort", message="the queue is full", status=503, retry_after=1.0)
    with running_server(engine=ScriptedEngine(refuse=full)) as server:
        assert ask(server, "/health_generate", method="GET").status == 200


def test_model_info(server: Running) -> None:
    info = ask(server, "/get_model_info", method="GET").json
    assert info == ask(server, "/model_info", method="GET").json
    assert info["model_path"] == "/models/toy"
    assert info["is_generation"] is True
    assert info["architectures"] == ["LlamaForCausalLM"]


def test_server_info_has_settings_facts_and_states(server: Running) -> None:
    info = ask(server, "/server_info", method="GET").json
    assert info == ask(server, "/get_server_info", method="GET").json
    assert info["max_total_num_tokens"] == 1000
    assert info["max_req_input_len"] == CONTEXT - 1
    (state,) = info["internal_states"]
    assert state["last_gen_throughput"] == 42.5
    assert state["memory_usage"]["weight"] == 1.5
    assert state["audit"] == []
    assert (state["running"], state["num_running_reqs"]) == (1, 1)
    assert (state["used_tokens"], state["pid"]) == (250, 99)
    assert "metrics" not in state
    assert "version" in info


def test_models(server: Running) -> None:
    (card,) = ask(server, "/v1/models", method="GET").json["data"]
    assert (card["id"], card["max_model_len"]) == (MODEL, CONTEXT)
    assert ask(server, f"/v1/models/{MODEL}", method="GET").json["id"] == MODEL
    missing = ask(server, "/v1/models/other/name", method="GET")
    assert missing.status == 404
    assert missing.json["error"]["code"] == "model_not_found"


def test_loads(server: Running) -> None:
    answer = ask(server, "/v1/loads?include=core,memory", method="GET").json
    assert answer["loads"][0]["num_running_reqs"] == 1
    assert answer["loads"][0]["token_usage"] == 0.25
    assert ask(server, "/v1/loads?dp_rank=3", method="GET").status == 400


def test_metrics_have_sglang_names_and_labels(server: Running) -> None:
    ask(server, "/no/such/path", method="GET")
    ask(server, "/v1/models/" + "a" * 50, method="GET")
    page = ask(server, "/metrics", method="GET").text
    found = {family.name: family for family in text_string_to_metric_families(page)}
    (running,) = found["sglang:num_running_reqs"].samples
    assert running.labels["model_name"] == MODEL
    assert running.value == 1.0
    (prompt,) = found["sglang:prompt_tokens"].samples
    assert prompt.name == "sglang:prompt_tokens_total"
    buckets = {
        s.labels["le"]: s.value
        for s in found["sglang:queue_time_seconds"].samples
        if s.name.endswith("_bucket")
    }
    assert buckets == {"0.1": 1.0, "1.0": 2.0, "+Inf": 3.0}
    endpoints = {s.labels["endpoint"] for s in found["sglang:http_requests"].samples}
    assert "other" in endpoints
    assert endpoints - {"other"} <= {route.path.replace(":.+", "") for route in ROUTES}
    active = {s.labels["endpoint"]: s.value for s in found["sglang:http_requests_active"].samples}
    assert active["/metrics"] == 1.0
    assert active["other"] == 0.0
    statuses = {s.labels["status_code"] for s in found["sglang:http_responses"].samples}
    assert {"200", "404"} <= statuses


def test_random_methods_and_paths_do_not_grow_the_metrics(server: Running) -> None:
    before = len(ask(server, "/metrics", method="GET").text)
    for number in range(30):
        ask(server, f"/x{number}", method=f"BREW{number}")
        ask(server, f"/v1/models/m{number}", method="GET")
    assert len(ask(server, "/metrics", method="GET").text) - before < 1024


def test_metrics_are_explained_when_off() -> None:
    with running_server() as server:
        answer = ask(server, "/metrics", method="GET")
        assert answer.status == 404
        assert "--enable-metrics" in answer.json["message"]


def test_tokenize_and_detokenize_are_inverse(server: Running) -> None:
    for prefix in ("", "/v1"):
        text = "Grüße, 世界"
        answer = ask(server, f"{prefix}/tokenize", {"prompt": text}).json
        assert answer["count"] == len(answer["tokens"]) == len(text.encode())
        assert answer["max_model_len"] == CONTEXT
        back = ask(server, f"{prefix}/detokenize", {"tokens": answer["tokens"]}).json
        assert back == {"text": text}


def test_tokenize_lists_and_conversations(server: Running) -> None:
    many = ask(server, "/tokenize", {"prompt": ["a", "bc"]}).json
    assert (many["tokens"], many["count"]) == ([[97], [98, 99]], [1, 2])
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    with_opening = ask(server, "/tokenize", chat).json["tokens"]
    assert bytes(with_opening).decode() == "<user>hi\n<assistant>"
    without = ask(server, "/tokenize", {**chat, "add_generation_prompt": False}).json["tokens"]
    assert bytes(without).decode() == "<user>hi\n"
    both = ask(server, "/tokenize", {**chat, "prompt": "x"})
    assert both.status == 400


def test_detokenize_lists_and_special_tokens(server: Running) -> None:
    many = ask(server, "/detokenize", {"tokens": [[65], [66, 67]]}).json
    assert many == {"text": ["A", "BC"]}
    shown = ask(server, "/detokenize", {"tokens": [65, 256], "skip_special_tokens": False}).json
    assert shown == {"text": "A<eos>"}
    bad = ask(server, "/detokenize", {"tokens": [65, 258]})
    assert (bad.status, bad.json["param"]) == (400, "tokens[1]")


def test_flush_cache_only_when_idle() -> None:
    engine = ScriptedEngine(silent=True)
    with running_server(engine=engine) as server:
        for method in ("GET", "POST"):
            answer = ask(server, "/flush_cache", method=method)
            assert answer.status == 200
            assert "Cache flushed" in answer.text
        server.call(engine.running.__setitem__, 1, None)
        answer = ask(server, "/flush_cache")
        assert answer.status == 400
        assert "requests are running" in answer.json["message"]
        server.call(engine.running.clear)


def test_abort_needs_a_target(server: Running) -> None:
    assert ask(server, "/abort_request", {}).status == 400
    assert ask(server, "/abort_request", {"rid": ""}).status == 400
    assert ask(server, "/abort_request", {"rid": "nobody"}).status == 200
    assert ask(server, "/abort_request", {"abort_all": True}).status == 200


def test_configure_logging_switches_request_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Lines may come after the answer, and other loggers tell of a loaded machine."""
    body = {"text": "secret words", "sampling_params": {"max_new_tokens": 2}, "rid": "logged"}
    quiet = ServerSettings(access_log_level="error")

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "vivace.requests"]

    with running_server(quiet) as server, caplog.at_level(logging.INFO, logger="vivace.requests"):
        ask(server, "/generate", {**body, "rid": "unseen"})
        answer = ask(server, "/configure_logging", {"log_requests": True, "log_requests_level": 0})
        assert answer.json["log_requests"] is True
        ask(server, "/generate", body)
        server.until(lambda: len(lines()) >= 2)
        assert [line.split(":")[0] for line in lines()] == ["Receive", "Finish"]
        assert "logged" in lines()[0]
        assert not any("secret" in line or "unseen" in line for line in lines())
        ask(server, "/configure_logging", {"log_requests_level": 3, "log_requests_format": "json"})
        ask(server, "/generate", body)
        server.until(lambda: len(lines()) >= 4)
        line = msgspec.json.decode(lines()[2])
        assert line["event"] == "request.received"
        assert line["input"] == "secret words"
        ask(server, "/generate", {**body, "no_logs": True, "rid": "never"})
        ask(server, "/generate", {**body, "rid": "last"})
        server.until(lambda: "last" in lines()[-1] and len(lines()) >= 6)
        assert len(lines()) == 6 and not any("never" in line for line in lines())


@pytest.mark.parametrize(
    "body",
    [
        {"log_requests_level": 4},
        {"log_requests_format": "xml"},
        {"log_requests_target": ["/tmp/x"]},
        {"dump_requests_folder": "/tmp/x"},
        {"crash_dump_folder": "/tmp/x"},
    ],
)
def test_configure_logging_refuses(server: Running, body: dict) -> None:
    assert ask(server, "/configure_logging", body).status == 400


def test_access_log_has_uvicorns_form(caplog: pytest.LogCaptureFixture) -> None:
    with running_server() as server, caplog.at_level(logging.INFO, logger="vivace.access"):
        ask(server, "/tokenize?q=a%0Ab", {"prompt": "x"})
        ask(server, "/nothing", method="GET")
        server.until(lambda: len(caplog.records) >= 2)
    first, second = (record.getMessage() for record in caplog.records[:2])
    assert first.startswith("INFO: 127.0.0.1:")
    assert first.endswith('- "POST /tokenize?q=a%0Ab HTTP/1.1" 200 OK')
    assert second.endswith('- "GET /nothing HTTP/1.1" 404 Not Found')


def test_a_tree_that_was_never_installed_knows_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied, or on PYTHONPATH: no package metadata."""

    def missing(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with running_server() as server:
        for path, *keys in (("/openapi.json", "info", "version"), ("/server_info", "version")):
            found = ask(server, path, method="GET").json
            for key in keys:
                found = found[key]
            assert found == vivace.__version__


def test_probes_are_logged_only_when_they_fail(caplog: pytest.LogCaptureFixture) -> None:
    settings = ServerSettings(metrics=True, access_log_excluded=("/v1/mod",))
    with (
        running_server(settings) as server,
        caplog.at_level(logging.INFO, logger="vivace.access"),
    ):
        for path in ("/health", "/ready?x", "/metrics", "/health_generate", "/v1/models"):
            assert ask(server, path, method="GET").status == 200
        ask(server, "/health", {})
        ask(server, "/ping", method="GET")
        server.until(lambda: len(caplog.records) >= 2)
    told = [record.getMessage().partition('"')[2] for record in caplog.records]
    assert told == ['POST /health HTTP/1.1" 405 Method Not Allowed', 'GET /ping HTTP/1.1" 200 OK']


@pytest.mark.parametrize(
    ("status", "told"),
    [("starting", []), ("warming up", []), ("draining", ["/ready"])],
)
def test_a_server_that_starts_is_asked_without_lines(
    status: str, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    told = [*told, "/nothing"]
    with (
        running_server(ready=status != "starting") as server,
        caplog.at_level(logging.INFO, logger="vivace.access"),
    ):
        server.frontend.engine.warming_up = status == "warming up"
        if status == "draining":
            server.call(server.frontend.drain)
        for path in ("/ready", "/nothing"):
            assert ask(server, path, method="GET").status in (503, 404)
        server.until(lambda: len(caplog.records) >= len(told))
    assert [record.getMessage().split()[4] for record in caplog.records] == told


def test_the_document_in_the_repository_is_current(server: Running) -> None:
    """Regenerate with: python -m vivace.server.openapi > docs/openapi.json"""
    assert DOCUMENT.read_bytes() == document(ROUTES)
    assert ask(server, "/openapi.json", method="GET").json["openapi"] == "3.1.0"


KEYED = {
    (None, None): set(),
    ("u", None): {"user", "admin"},
    (None, "a"): {"admin"},
    ("u", "a"): {"user", "admin"},
}


@pytest.mark.parametrize("keys", KEYED)
def test_the_document_asks_for_a_key_where_the_server_does(
    keys: tuple[str | None, str | None],
) -> None:
    user, admin = keys
    users, admins = (user,) if user else (), (admin,) if admin else ()
    with running_server(ServerSettings(api_keys=users, admin_api_keys=admins)) as server:
        headers = {"Authorization": f"Bearer {user or admin}"}
        whole = ask(server, "/openapi.json", method="GET", headers=headers).json
        asks = {
            (path, method)
            for path, methods in whole["paths"].items()
            for method, operation in methods.items()
            if "security" in operation
        }
        assert {whole["paths"][p][m]["x-access"] for p, m in asks} == KEYED[keys]
        assert ("securitySchemes" in whole["components"]) is bool(KEYED[keys])
        for path, methods in whole["paths"].items():
            for method in methods:
                status = ask(server, path, method=method.upper()).status
                assert (status == 401) is ((path, method) in asks), (path, method)


def test_every_reference_of_the_document_resolves() -> None:
    text = document(ROUTES).decode()
    whole = msgspec.json.decode(text)
    names = set(whole["components"]["schemas"])
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names
    assert {"/generate", "/v1/chat/completions", "/v1/models/{model}"} <= set(whole["paths"])
