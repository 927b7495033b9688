"""Fields nobody knows: ignored, as SGLang and OpenAI's servers do, but counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from route_bodies import BODIES
from server_kit import Running, ask, refusal, running_server

from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(metrics=True), every_task=True) as running:
        yield running


def counted(server: Running) -> float:
    for line in ask(server, "/metrics", method="GET").text.splitlines():
        if line.startswith("vivace:unknown_field_requests_total{"):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_every_route_with_a_struct_is_here() -> None:
    assert set(BODIES) == {route.path for route in ROUTES if route.accepts is not None}


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_is_ignored_and_counted(
    server: Running, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted(server)
    assert ask(server, path, BODIES[path]).status == 200
    assert counted(server) == before
    with caplog.at_level(logging.DEBUG, logger="vivace.server"):
        assert ask(server, path, {**BODIES[path], "from_the_future": [1]}).status == 200
    assert counted(server) == before + 1
    assert any("from_the_future" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("path", BODIES)
def test_what_is_wrong_is_told_also_beside_an_unknown_field(server: Running, path: str) -> None:
    before = counted(server)
    known = next(iter(BODIES[path]))
    answer = ask(server, path, {"from_the_future": 1, **BODIES[path], known: {"no": "such"}})
    assert answer.status == 400
    assert refusal(answer.json)[0] == known
    assert counted(server) == before
