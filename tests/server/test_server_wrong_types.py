"""A value of every JSON type in every field of every body, on every route that takes it: an answer,
or a refusal that names the field; never an error of ours."""

from __future__ import annotations

import copy
import json
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from field_cases import BODIES, Body
from pipelined_requests import post_all
from server_kit import CONTEXT, Running, ScriptedEngine, make_tokenizer, prose, refusal
from server_kit import running_server as start
from test_server_every_field import ACCEPTED, SAMPLING_BODY, TEMPLATE, structs_in

from vivace.frontend import validation
from vivace.requests.limits import DEPTH
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


VALUES: list[Any] = [
    None, True, False, 0, -1, 7, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 10**400, 0.5, -0.0, 5e-324,
    1e308, float("nan"), float("-inf"), "", "x", "NaN", "7", "a\0\n\u2028", "x" * 300, "\ud800",
    [], [None], [True], [1], [1 << 70], [0.5], ["x"], [[]], [[1]], [["x", 1]], [[[]]], [{}],
    [{"x": 1}], [1, "x", None], [1] * 5000, {}, {"x": 1}, {"": None}, {"x": {"y": [{}]}},
    {"type": "x"}, {"1": 1}, {"1": 1e400}, nested(DEPTH - 9), nested(DEPTH + 5),
]  # fmt: skip
MISREAD = (float("nan"), float("-inf"), 10**400, "\ud800", {"1": 1e400}, nested(DEPTH + 5))
"""Not JSON, no numbers or texts of any program, or too deep: the whole body is refused."""
FIELDS: list[tuple[str, Body, str]] = [
    *((kind.__name__, BODIES[kind], name) for kind in ACCEPTED for name in kind.__struct_fields__),
    *(("sampling_params", SAMPLING_BODY, name) for name in validation.SAMPLING_FIELDS),
    *(("sampling_params", SAMPLING_BODY, name) for name in validation.UNAVAILABLE),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    tokenizer = make_tokenizer(TEMPLATE, begin=True)
    engine = ScriptedEngine(script=prose)
    served: dict[str, Any] = {"tokenizer": tokenizer, "every_task": True, "context": 2 * CONTEXT}
    with start(ServerSettings(), engine, **served) as running:
        yield running


def same_body_routes(body: Body) -> list[str]:
    """All that take the same struct as the body's own route."""
    (struct,) = {route.accepts for route in ROUTES if route.path == body.path}
    return [route.path for route in ROUTES if route.accepts is struct]


def with_value(body: Body, name: str, value: Any) -> bytes:
    whole: Any = copy.deepcopy(dict(body.base))
    inner = whole
    for step in body.place:
        inner = inner[step]
    inner[name] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("body", "name"), [case[1:] for case in FIELDS], ids=[f"{kind}-{n}" for kind, _, n in FIELDS]
)
def test_any_value_is_taken_or_refused_by_name(
    server: Running, body: Body, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[str] = []
    bodies = [with_value(body, name, value) for value in VALUES]
    for path in same_body_routes(body):
        answers = post_all(server.port, [(path, one) for one in bodies])
        for value, (status, text) in zip(VALUES, answers, strict=True):
            if problem := wrong(status, text, body, name, value):
                found.append(f"{path} {name}={str(value)[:60]!r}: {problem}")
    assert not found, "\n".join(found)
    # This server has one node: what watches connections between nodes is another test's thread.
    own = [record for record in caplog.records if record.name != "vivace.launch.silent_peers"]
    assert not [record.getMessage() for record in own if record.levelname == "ERROR"]


def wrong(status: int, text: str, body: Body, name: str, value: Any) -> str:
    """What an answer should not be; "" for nothing."""
    if status == 200:
        return "" if "Traceback" not in text else text
    if not 400 <= status < 500:
        return f"{status} {text[:300]}"
    field, message = refusal(msgspec.json.decode(text))
    if value in MISREAD or value != value:
        return "" if message else "no reason"
    named = f"{field} {message}"
    holders = [name, *(step for step in body.place if isinstance(step, str))]
    return "" if any(holder in named for holder in holders) else f"{status} {text[:300]}"


def test_every_struct_and_route_is_walked() -> None:
    """A new one is, by itself."""
    for route in ROUTES:
        for kind in structs_in(route.accepts):
            assert route.path in same_body_routes(BODIES[kind]) or kind is not route.accepts
            hints = typing.get_type_hints(kind)
            assert {name for _, body, name in FIELDS if body is BODIES[kind]} >= set(hints)
