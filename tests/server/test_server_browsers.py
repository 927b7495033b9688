"""What a page of another origin may do through a browser: nothing, on any route."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import urllib.request
from typing import Any

import openai
import pytest
from route_bodies import BODIES
from server_kit import Running, running_server
from test_server_access import example_path, expected_status

from vivace.server.access import Access, Effect, same_origin
from vivace.server.responses import HTTPError, error_response
from vivace.server.route import Route
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings

BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
JSON = {"Content-Type": "application/json"}
OWN = {"User-Agent": BROWSER, "Sec-Fetch-Site": "same-origin"}
PLACES = [(route, method, example_path(route)) for route in ROUTES for method in route.methods]
ATTACKS: dict[str, dict[str, str]] = {
    "foreign origin": {"Origin": "https://evil.example"},
    "foreign origin with json": {"Origin": "https://evil.example", **JSON},
    "opaque origin": {"Origin": "null"},
    "same name, another port": {"Origin": "http://127.0.0.1:1"},
    "image": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "same site": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    "rebinding": {"Host": "evil.example:30000", **JSON},
    "rebinding, same origin": {
        "Host": "evil.example",
        "Origin": "http://evil.example",
        "Sec-Fetch-Site": "same-origin",
        **JSON,
    },
    "old browser": {"User-Agent": BROWSER, "Referer": "http://evil.example/page"},
}
ACTING = {
    "link": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    "browser that says nothing": {"User-Agent": BROWSER},
    "browser with a type of its own": {
        "User-Agent": BROWSER,
        "Content-Type": "application/octet-stream",
    },
    "text": {"Content-Type": "text/plain"},
    "form": {"Content-Type": "application/x-www-form-urlencoded"},
    "upload": {"Content-Type": "multipart/form-data; boundary=x"},
}


@pytest.fixture(scope="module")
def server():
    with running_server(ServerSettings(metrics=True), every_task=True) as found:
        yield found


def send(
    server: Running, method: str, path: str, headers: dict[str, str], body: Any = None
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    data = b"" if body is None else json.dumps(body).encode()
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    if data:
        connection.putheader("Content-Length", str(len(data)))
    connection.endheaders(data)
    response = connection.getresponse()
    response.text = response.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return response


def request_body(route: Route, method: str) -> Any:
    return BODIES.get(route.path) if method != "GET" else None


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_route_serves_another_origin(server: Running, attack: str) -> None:
    done = len(server.engine.requests), len(server.engine.commands)
    for route, method, path in PLACES:
        if attack.startswith("rebinding") and route.auth is Access.PUBLIC:
            continue  # health checks may use any name, and read nothing
        answer = send(server, method, path, ATTACKS[attack], request_body(route, method))
        assert answer.status == 403, (path, method)
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert (len(server.engine.requests), len(server.engine.commands)) == done


@pytest.mark.parametrize("attack", ACTING)
def test_what_acts_wants_more_than_a_form_can_send(server: Running, attack: str) -> None:
    done = len(server.engine.requests)
    for route, method, path in PLACES:
        headers, body = ATTACKS.get(attack) or ACTING[attack], request_body(route, method)
        if ("Content-Type" in headers and body is None) or (attack == "link" and method == "HEAD"):
            continue
        if route.effect is Effect.ACTS:
            assert send(server, method, path, headers, body).status in (403, 415), (path, method)
        elif "Content-Type" not in headers:
            wanted = expected_status(route)
            assert send(server, method, path, headers).status == wanted, (path, method)
    assert len(server.engine.requests) == done


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"User-Agent": "python-requests/2.32"},
        OWN,
        {**OWN, "Sec-Fetch-Site": "none"},
        {"Host": "localhost:4"},
        {"Host": "[::1]:4"},
        {"Host": "app.localhost"},
        {"Host": "192.168.3.4:30000"},
    ],
)
def test_programs_and_own_pages_are_served(server: Running, headers: dict[str, str]) -> None:
    for route, method, path in PLACES:
        body = request_body(route, method)
        sent = {**JSON, **headers} if body is not None else headers
        wanted = expected_status(route)
        assert send(server, method, path, sent, body).status == wanted, (path, method)
        if body is not None and headers.get("User-Agent") != BROWSER:
            assert send(server, method, path, headers, body).status == wanted, (path, method)


def test_own_origin_is_served(server: Running) -> None:
    for route, method, path in PLACES:
        headers = {"Origin": f"http://127.0.0.1:{server.port}", "User-Agent": BROWSER, **JSON}
        status = send(server, method, path, headers, request_body(route, method)).status
        assert status == expected_status(route), path


def test_a_key_needs_no_more() -> None:
    """No page has it, so a request with the key may look as it likes."""
    settings = ServerSettings(api_keys=("one", "two"))
    with running_server(settings) as server:
        key = {"Authorization": "Bearer two"}
        for attack in (ATTACKS | ACTING).values():
            headers = {**attack, **key}
            assert send(server, "GET", "/flush_cache", headers).status == 200
            body = BODIES["/generate"]
            assert send(server, "POST", "/generate", headers, body).status == 200
        for attack in ("foreign origin", "rebinding", "image"):
            assert send(server, "GET", "/flush_cache", ATTACKS[attack]).status == 401
        for attack in ("foreign origin", "image"):
            assert send(server, "GET", "/health_generate", ATTACKS[attack]).status == 403


def test_probes_may_use_any_name(server: Running) -> None:
    public = [path for route, _, path in PLACES if route.auth is Access.PUBLIC]
    assert sorted(public) == ["/health", "/health_generate", "/ready"]
    for path in public:
        answer = send(server, "GET", path, {"Host": "vivace.svc.example:80"})
        assert answer.status == 200 and not answer.text.strip()  # type: ignore[attr-defined]
    assert send(server, "GET", "/v1/models", {"Host": "vivace.svc.example:80"}).status == 403


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def test_a_route_without_body_takes_any_from_programs(server: Running) -> None:
    """`curl -X POST -d '{}' .../flush_cache`; a browser still has to say for which page it asks."""
    for headers in (FORM, {**FORM, "User-Agent": "curl/8.5"}, {"Content-Type": "text/plain"}):
        assert send(server, "POST", "/flush_cache", headers, {}).status == 200
    done = len(server.engine.commands)
    browsers = [*ATTACKS.values(), {"User-Agent": BROWSER}, {"Origin": "null"}]
    for headers in browsers:
        assert send(server, "POST", "/flush_cache", {**headers, **FORM}, {}).status == 403, headers
    assert len(server.engine.commands) == done
    own = {"Origin": f"http://127.0.0.1:{server.port}", "User-Agent": BROWSER}
    assert send(server, "POST", "/flush_cache", {**own, **FORM}, {}).status == 200
    for path in ("/generate", "/abort_request", "/configure_logging"):
        assert send(server, "POST", path, FORM, {}).status == 415


def test_what_curl_calls_a_form_is_json(server: Running) -> None:
    """Ollama's examples name no type; a page that says it is curl still says which page it is."""
    asked = {"prompt": "a"}
    for program in ("curl/8.5.0", "Wget/1.21.3", "Wget", "wget2/2.1.0"):
        answer = send(server, "POST", "/tokenize", {**FORM, "User-Agent": program}, asked)
        assert answer.status == 200, answer.text  # type: ignore[attr-defined]
        for attack in ({"Origin": "null"}, ATTACKS["image"], {"Referer": "http://evil.example/"}):
            headers = {**FORM, "User-Agent": program, **attack}
            assert send(server, "POST", "/tokenize", headers, asked).status == 403
    for program in (BROWSER, "libcurl/8.5", f"{BROWSER} curl/8.5.0", ""):
        answer = send(server, "POST", "/tokenize", {**FORM, "User-Agent": program}, asked)
        assert answer.status == 415
    upload = {"Content-Type": "multipart/form-data; boundary=x", "User-Agent": "curl/8.5.0"}
    assert send(server, "POST", "/tokenize", upload, asked).status == 415


def test_one_slash_too_many(server: Running) -> None:
    for route, method, path in PLACES:
        if path == "/" or "{" in route.path:
            continue
        answer = send(server, method, f"{path}/?a=%2F", {})
        assert answer.status == 307 and answer.headers["Location"] == f"{path}?a=%2F", path
        assert send(server, method, f"{path}//", {}).status == 404
    for path in ("//evil.example/", "/nothing/", "//"):
        assert send(server, "GET", path, {}).status == 404
    assert send(server, "GET", "/generate/", {}).status == 404


def test_allowed_pages() -> None:
    page = "https://ui.example:8443"
    settings = ServerSettings(allowed_origins=(page,), allowed_hosts=("llm.example",))
    with running_server(settings) as server:
        asks = {
            "Origin": page,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
            "Access-Control-Request-Private-Network": "true",
        }
        path = "/v1/chat/completions"
        answer = send(server, "OPTIONS", path, asks)
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == page
        assert answer.headers["Access-Control-Allow-Methods"] == "POST"
        assert "x-stainless-os" in answer.headers["Access-Control-Allow-Headers"]
        assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
        body = {**BODIES[path], "stream": True}
        for wanted in (body, {**body, "temperature": "hot"}):
            answer = send(server, "POST", path, {"Origin": page, **JSON}, wanted)
            assert answer.headers["Access-Control-Allow-Origin"] == page
            assert answer.headers["Vary"] == "Origin"
        asks["Origin"] = "https://evil.example"
        answer = send(server, "OPTIONS", path, asks)
        assert answer.status == 403 and "Access-Control-Allow-Origin" not in answer.headers
        assert send(server, "GET", "/v1/models", {"Host": "llm.example"}).status == 200
        answer = send(server, "GET", "/v1/models", {"Host": "evil.example"})
        assert answer.status == 403 and "--allowed-hosts evil.example" in answer.text  # type: ignore[attr-defined]


def test_everything_may_be_allowed() -> None:
    with running_server(ServerSettings(allowed_origins=("*",), allowed_hosts=None)) as server:
        headers = {"Origin": "https://any.example", "Host": "any.example", **JSON}
        answer = send(server, "POST", "/generate", headers, BODIES["/generate"])
        assert answer.status == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://any.example"


@pytest.mark.parametrize(
    ("address", "host", "same"),
    [
        ("http://a:30000", "a:30000", True),
        ("http://a:30000/x?y", "A:30000", True),
        ("http://a", "a", True),
        ("http://a:80", "a", True),
        ("https://a", "a", True),
        ("https://a:443", "a", True),
        ("http://[::1]:5", "[::1]:5", True),
        ("http://[::1]", "[::1]:80", True),
        ("http://a:1", "a:2", False),
        ("https://a", "a:80", False),
        ("http://a.b", "a", False),
        ("http://a@b", "a", False),
        ("null", "null", False),
        ("", "", False),
        ("file:///x", "", False),
        ("http://[", "[", False),
    ],
)
def test_same_origin(address: str, host: str, same: bool) -> None:
    assert same_origin(address, host) is same


def test_usual_clients(server: Running) -> None:
    """openai, urllib and curl as they come."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        assert client.models.list().data
        talk = [{"role": "user", "content": "x"}]
        assert client.chat.completions.create(model="toy", messages=talk, max_tokens=1).choices  # type: ignore[arg-type]
    assert urllib.request.urlopen(f"{server.url}/flush_cache", timeout=20).status == 200
    post = urllib.request.Request(f"{server.url}/flush_cache", method="POST")
    assert urllib.request.urlopen(post, timeout=20).status == 200
    data = '{"text": "x", "sampling_params": {"max_new_tokens": 1}}'
    for words in ([], ["-H", "Content-Type: application/json"]):
        command = ["curl", "-s", "-w", "%{http_code}", f"{server.url}/generate", *words, "-d", data]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=20)
        assert done.stdout.endswith("200")


STRANGE = (b"\xff\xfe", b"http://\xff", b"a\x80b", b"\xc3\xa9", b"\xed\xa0\x80", b"", b"x" * 9000)
HEADERS = (
    "Host",
    "Origin",
    "Referer",
    "Sec-Fetch-Site",
    "Sec-Fetch-Mode",
    "Content-Type",
    "Content-Encoding",
    "Authorization",
    "User-Agent",
    "Expect",
    "Access-Control-Request-Method",
    "Access-Control-Request-Headers",
    "X-Request-Id",
)


def exchange(server: Running, data: bytes) -> tuple[int, bytes]:
    """The status and the rest of the answer to bytes on a connection of their own."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(data)
        answer = sock.makefile("rb").read()
    return int(answer.split()[1]), answer


@pytest.mark.parametrize("keys", [(), ("secret",)], ids=["open", "keys"])
def test_no_bytes_of_a_header_are_a_fault_of_the_server(
    keys: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Headers that are no UTF-8 were put into messages that JSON then could not have."""
    for origins, hosts in (((), ()), (("*",), None)):
        settings = ServerSettings(api_keys=keys, allowed_origins=origins, allowed_hosts=hosts)
        with running_server(settings) as server:
            for place in ("GET /v1/models", "POST /generate", "OPTIONS /generate", "GET /\udcff"):
                for name in HEADERS:
                    for value in STRANGE:
                        lines = [place.encode("utf-8", "surrogateescape") + b" HTTP/1.1"]
                        if name != "Host":
                            lines.append(b"Host: localhost")
                        if place[0] == "O" and not name.startswith("Access"):
                            lines += [b"Access-Control-Request-Method: POST", b"Origin: http://a"]
                        lines.append(name.encode() + b": " + value)
                        lines += [b"Connection: close", b"Content-Length: 0", b"", b""]
                        status, answer = exchange(server, b"\r\n".join(lines))
                        assert status < 500, (place, name, value, answer)
                        if b"application/json" in answer and status >= 400:
                            shown = json.loads(answer.partition(b"\r\n\r\n")[2])
                            assert len(shown["message"]) < 5000
                            if name == "Host" and not value.isascii() and not keys:
                                assert status in (400, 403)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("text", ["\udcff\udcfe", "\ud800", "é", "\0", "x" * 10**6])
def test_every_message_makes_an_answer(text: str) -> None:
    response = error_response(HTTPError(400, text, param=text))
    assert isinstance(response.body, bytes)
    assert len(json.loads(response.body)["message"]) <= 2 * 4200


def test_what_goes_wrong_while_an_error_is_answered_is_logged(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr("vivace.server.http.aiohttp_error", broken)
    assert send(server, "GET", "/nothing/here", {}).status == 500
    assert "out of order" in caplog.text


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:80:evil", "[::1]evil", "localhost:evil", "", " ", "a@localhost", "localhost/x"],
)
def test_a_host_that_is_no_name_is_refused(server: Running, host: str) -> None:
    assert send(server, "GET", "/v1/models", {"Host": host}).status == 400


HEAD = "GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = "POST /generate HTTP/1.1\r\nHost: localhost\r\n"
ODD = {
    "GET /health\r\n\r\n": (400, 505),
    "GET /health HTTP/0.9\r\n\r\n": (400, 505),
    "GET /health HTTP/0.9\r\nHost: localhost\r\n\r\n": (400, 505),
    "GET /health HTTP/1.1\r\n\r\n": (400,),
    "GET /health HTTP/1.2\r\nHost: localhost\r\n\r\n": (400, 505),
    "GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n": (400, 505),
    "GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n": (400, 505),
    "GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n": (400, 505),
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": (505,),
    "GET /health HTTP/1.0\r\n\r\n": (200,),
    "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n": (200,),
    HEAD + "Host: localhost\r\n\r\n": (400,),
    HEAD + "Origin: http://localhost\r\nOrigin: x\r\n\r\n": (400,),
    HEAD + "Authorization: a\r\nAuthorization: b\r\n\r\n": (400,),
    HEAD + "Sec-Fetch-Site: none\r\nSec-Fetch-Site: x\r\n\r\n": (400,),
    POST + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}": (400,),
    POST + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ": (400,),
    POST + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": (400,),
    POST + "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n": (501,),
    POST + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n": (501,),
    POST + "Transfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n": (400,),
    "POST /generate HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": (400,),
}  # fmt: skip


@pytest.mark.parametrize("request_bytes", ODD)
def test_odd_versions_and_doubled_headers(server: Running, request_bytes: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(request_bytes.encode())
        version, status, _ = sock.makefile("rb").readline().split(None, 2)
    assert int(status) in ODD[request_bytes]
    assert version in (b"HTTP/1.0", b"HTTP/1.1"), "what clients can read"
