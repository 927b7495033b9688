"""Who may call what, and what the route table promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from route_bodies import BODIES
from server_kit import Running, ask, running_server

from vivace.server.access import Access, Keys
from vivace.server.responses import HTTPError
from vivace.server.route import Route, check_routes
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings

STORED = "{response_id}"
"""in paths of what is asked for by its id"""


def example_path(route: Route) -> str:
    return route.path.replace("{model:.+}", "toy").replace(STORED, "resp_0")


def expected_status(route: Route) -> int:
    """Of a request that is allowed: nothing is stored."""
    return 404 if STORED in route.path else 200


def call(server: Running, route: Route, key: str | None, prefix: str = "") -> int:
    path = prefix + example_path(route)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    method = route.methods[0]
    body = BODIES.get(route.path) if method != "GET" else None
    return ask(server, path, body, method=method, headers=headers).status


KEYS = {None: "nobody", "wrong": "nobody", "user-key": "user", "admin-key": "admin"}


@pytest.mark.parametrize("api_key", [None, "user-key"])
@pytest.mark.parametrize("admin_key", [None, "admin-key"])
def test_every_route_with_every_key(api_key: str | None, admin_key: str | None) -> None:
    settings = ServerSettings(
        api_keys=(api_key,) if api_key else (),
        admin_api_keys=(admin_key,) if admin_key else (),
        metrics=True,
    )
    with running_server(settings, every_task=True) as server:
        for route in ROUTES:
            for key in KEYS:
                allowed = may(route.auth, key, api_key, admin_key)
                status = call(server, route, key)
                assert (status != 401) == allowed, (route.path, key)
                assert not allowed or status == expected_status(route), (route.path, key, status)


def may(auth: Access, key: str | None, api_key: str | None, admin_key: str | None) -> bool:
    """The rule, told a second time."""
    if auth is Access.PUBLIC:
        return True
    if auth is Access.ADMIN and admin_key is not None:
        return key == admin_key
    return api_key is None or (key in (api_key, admin_key) and key is not None)


def test_only_health_is_public() -> None:
    public = {route.path for route in ROUTES if route.auth is Access.PUBLIC}
    assert public == {"/health", "/health_generate", "/ready"}


@pytest.mark.parametrize(
    "header",
    ["user-key", "Basic user-key", "Bearer", "Bearer ", "Bearer user-key x", "Bearer üser-key"],
)
def test_other_forms_of_the_header_do_not_open(header: str) -> None:
    with running_server(ServerSettings(api_keys=("user-key",))) as server:
        answer = ask(server, "/v1/models", method="GET", headers={"Authorization": header})
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json["error"]["code"] == "invalid_api_key"


def test_scheme_is_case_insensitive_and_keys_are_not() -> None:
    with running_server(ServerSettings(api_keys=("user-key",))) as server:
        for header, status in [("bearer user-key", 200), ("Bearer USER-KEY", 401)]:
            answer = ask(server, "/v1/models", method="GET", headers={"Authorization": header})
            assert answer.status == status


@given(
    users=st.lists(st.sampled_from("abcdefgh"), max_size=5, unique=True),
    admins=st.lists(st.sampled_from("ghijkl"), max_size=3, unique=True),
    given_key=st.sampled_from("abcdefghijklmn"),
)
def test_a_client_is_the_place_of_its_key(
    users: list[str], admins: list[str], given_key: str
) -> None:
    keys = Keys(users, admins)
    headers = {"Authorization": f"Bearer {given_key}"}
    request = make_mocked_request("GET", "/", headers=headers)
    opening = {Access.PUBLIC: [], Access.USER: [*users, *admins] if users else []}
    opening[Access.ADMIN] = admins or opening[Access.USER]
    for access, wanted in opening.items():
        if wanted and given_key not in wanted:
            with pytest.raises(HTTPError):
                keys.check(request, access)
            continue
        client = keys.check(request, access)
        assert client == ([*users, *admins].index(given_key) if wanted else None) or (
            client is not None and [*users, *admins][client] == given_key
        )


def test_the_engine_is_told_whose_request_it_is() -> None:
    with running_server(ServerSettings(api_keys=("a", "b", "c"))) as server:
        for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            for client, key in enumerate("abc"):
                headers = {"Authorization": f"Bearer {key}"}
                assert ask(server, path, BODIES[path], headers=headers).status == 200
                assert server.engine.requests[-1].client == client


def test_without_a_key_unknown_paths_look_like_known_ones() -> None:
    with running_server(ServerSettings(api_keys=("user-key",))) as server:
        assert ask(server, "/nothing", method="GET").status == 401
        assert ask(server, "/generate", method="DELETE").status == 401
        headers = {"Authorization": "Bearer user-key"}
        assert ask(server, "/nothing", method="GET", headers=headers).status == 404


def test_a_request_without_a_key_is_refused_before_its_body_is_read() -> None:
    with running_server(ServerSettings(api_keys=("user-key",), body_limit=1000)) as server:
        assert ask(server, "/generate", b"x" * 5000).status == 401


def test_unknown_path_and_method_are_json_errors() -> None:
    with running_server() as server:
        missing = ask(server, "/nothing", {"a": 1})
        assert (missing.status, missing.json["error"]["code"]) == (404, 404)
        wrong = ask(server, "/generate", method="DELETE")
        assert (wrong.status, wrong.json["code"]) == (405, 405)
        assert wrong.headers["Allow"] == "POST, PUT"
        assert ask(server, "/%2e%2e/etc/passwd", method="GET").status == 404


def test_root_path_serves_both_spellings() -> None:
    with running_server(ServerSettings(root_path="/llm")) as server:
        for prefix in ("", "/llm"):
            assert ask(server, f"{prefix}/v1/models", method="GET").status == 200
        assert ask(server, "/other/v1/models", method="GET").status == 404


ROUTE = ROUTES[0]


@pytest.mark.parametrize(
    "broken",
    [
        (replace(ROUTE, auth=None),),
        (replace(ROUTE, auth="user!"),),
        (replace(ROUTE, effect=None),),
        (replace(ROUTE, effect="acts!"),),
        (replace(ROUTE, body_limit=None),),
        (replace(ROUTE, body_limit=-7),),
        (replace(ROUTE, methods=()),),
        (replace(ROUTE, methods=("FETCH",)),),
        (replace(ROUTE, path="health"),),
        (replace(ROUTE, handler=None),),
        (ROUTE, ROUTE),
    ],
)
def test_an_incomplete_route_table_is_refused(broken: tuple) -> None:
    with pytest.raises(ValueError, match="route"):
        check_routes(broken)
