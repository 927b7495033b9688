"""What is told when nobody answers, whichever library found out."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from vivace.bench import soak
from vivace.bench.errors import BenchError
from vivace.bench.http_json import ask
from vivace.chat.backend import ChatError
from vivace.chat.remote import RemoteBackend
from vivace.errors import why_no_answer


@pytest.fixture
def url() -> str:
    """Of a port where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_every_command_says_refused_and_no_number(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak.main(["--url", url]) == 1
    told = [capsys.readouterr().err]
    with pytest.raises(ChatError) as chat:
        RemoteBackend(url, None, None)
    with pytest.raises(BenchError) as bench:
        ask(url)
    for text in (*told, str(chat.value), str(bench.value)):
        assert "Connection refused" in text and "Errno" not in text and "ssl:" not in text


KEY = ConnectionKey("host", 80, False, True, None, None, None)
UNKNOWN = socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "x")), "Connection refused"),
        (aiohttp.ClientConnectorDNSError(KEY, UNKNOWN), "Name or service not known"),
        (urllib.error.URLError(UNKNOWN), "Name or service not known"),
        (urllib.error.URLError("unknown url type"), "unknown url type"),
        (urllib.error.URLError(TimeoutError("timed out")), "no answer in time"),
        (TimeoutError(), "no answer in time"),
        (ssl.SSLError(1, "wrong version number"), "wrong version number"),
        (http.client.BadStatusLine("hello"), "hello"),
        (OSError("Multiple exceptions"), "Multiple exceptions"),
        (http.client.IncompleteRead(b""), "IncompleteRead"),
    ],
)
def test_the_reason_is_the_systems(error: Exception, reason: str) -> None:
    assert reason in why_no_answer(error) and "Errno" not in why_no_answer(error)
