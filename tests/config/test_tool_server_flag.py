"""--tool-server: which places it names, what its files hold, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.config.errors import ConfigError
from vivace.config.http import ToolServerSpec
from vivace.config.parsing import parse


def named(value: str) -> tuple[ToolServerSpec, ...]:
    return parse(["--tool-server", value], {}).http.tool_servers


@pytest.mark.parametrize(
    ("value", "label", "transport", "url"),
    [
        ("one.example:8001", "one.example:8001", "sse", "http://one.example:8001/sse"),
        ("w=[::1]:80", "w", "sse", "http://[::1]:80/sse"),
        ("https://x.example/a/sse?k=1", "x.example", "sse", "https://x.example/a/sse?k=1"),
        ("w=http://x.example:9/mcp", "w", "http", "http://x.example:9/mcp"),
    ],
)
def test_places(value: str, label: str, transport: str, url: str) -> None:
    (spec,) = named(value)
    assert (spec.label, spec.transport, spec.url) == (label, transport, url)


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_files(tmp_path: Path, key: str) -> None:
    entries: Any = {
        "files": {"command": "npx", "args": ["-y", "files"], "env": {"TOKEN": "secret"}},
        "web": {"url": "https://x.example/mcp", "headers": {"Authorization": "secret"}},
        "old": {"type": "sse", "url": "https://x.example/events"},
        "off": {"command": "x", "disabled": True},
    }
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({key: entries, "theme": "dark"}))
    files, web, old, other = named(f"{path}, one.example:1")
    assert (files.transport, files.command) == ("stdio", ("npx", "-y", "files"))
    assert files.env["TOKEN"].reveal() == web.headers["Authorization"].reveal() == "secret"
    assert "secret" not in repr((files, web))
    assert (web.transport, old.transport, other.label) == ("http", "sse", "one.example:1")


def test_what_other_programs_write_into_files(tmp_path: Path) -> None:
    entries: Any = {
        "cline": {"command": "x", "cwd": "/srv", "timeout": 90, "autoApprove": ["look"]},
        "gemini": {"type": "streamableHttp", "url": "http://x/mcp", "timeout": 5000, "trust": True},
        "roo": {"command": "x", "args": ["$1", "{x}"], "alwaysAllow": [], "disabledTools": []},
        "off": {"disabled": True, "envFile": ".env", "anything": 1},
    }
    path = tmp_path / "tools.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"mcpServers": entries}).encode())
    cline, gemini, roo = named(str(path))
    assert (roo.command, roo.ignored) == (("x", "$1", "{x}"), ("alwaysAllow",))
    assert (cline.cwd, cline.timeout, cline.ignored) == ("/srv", 90, ("autoApprove",))
    assert (gemini.transport, gemini.timeout, gemini.ignored) == ("http", 5, ("trust",))


def test_members_that_do_nothing_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    entries: Any = {
        "command": {"command": "x", "cwd": "", "headers": {"K": "v"}},
        "url": {"url": "http://x/mcp", "cwd": "/srv", "args": ["-v"], "headers": {"K": "v\tä"}},
    }
    path.write_text(json.dumps({"servers": entries}))
    command, url = named(str(path))
    assert (command.cwd, command.ignored, url.ignored) == (None, ("headers",), ("cwd", "args"))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("weather", "host:port"),
        ("a:1,demo", "host:port"),
        ("a:1,a:1", "two"),
        ("ftp://x.example/", "http"),
        ("http://u:p@x.example/", "http"),
        ("a b=x:1", "host:port|label"),
        ("/no/such/tools.json", "tools"),
        ("a:1,", "host:port"),
        ("a:99999", "Port"),
    ],
)
def test_refusals(value: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        named(value)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "truncated"),
        ("{}", "mcpServers"),
        ('{"mcpServers": {"a": {}}}', "command"),
        ('{"servers": {"a": {}}}', r" servers\.a"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}', "command"),
        ('{"mcpServers": {"a": {"command": "x\\u0000"}}}', "NUL"),
        ('{"mcpServers": {"a": {"command": "x", "shell": true}}}', "remove"),
        ('{"mcpServers": {"a": {"command": "x", "envFile": ".env"}}}', "envFile"),
        ('{"mcpServers": {"a": {"command": "x", "disabledTools": ["b"]}}}', "allowed_tools"),
        ('{"mcpServers": {"a": {"httpUrl": "http://x"}}}', "url"),
        ('{"mcpServers": {"a": {"command": "x", "timeout": 0}}}', "timeout"),
        ('{"mcpServers": {"a": {"command": "x", "cwd": "\\u0000"}}}', "NUL"),
        ('{"servers": {"a": {"command": "x", "env": {"A": "${input:key}"}}}}', "filled"),
        ('{"servers": {"a": {"command": "${workspaceFolder}/x"}}}', "filled"),
        ('{"mcpServers": {"a": {"url": "http://x", "headers": {"K": "B ${KEY}"}}}}', "filled"),
        ('{"mcpServers": {"a": {"command": "x", "args": ["${HOME:-/tmp}"]}}}', "filled"),
        ('{"mcpServers": {"a": {"command": "x", "args": ["${user_config.key}"]}}}', "filled"),
        ('{"servers": {"a": {"command": "bin${/}x"}}}', "filled"),
        ('{"servers": {"a": {"command": "x"}}, // mine\n}', "comments"),
        ('{"mcpServers": {"a, b": {"command": "x"}}}', "label"),
        ('{"mcpServers": {"a": {"url": "x"}}}', "url"),
        ('{"mcpServers": {"a": {"type": "ws", "url": "http://x"}}}', "ws"),
        ('{"mcpServers": {"a": {"url": "http://x", "headers": {"K": "v\\r\\nX: y"}}}}', "header"),
        ('{"mcpServers": {"a": {"url": "http://x", "headers": {"K\\n": "v"}}}}', "header"),
        ('{"mcpServers": {"a": {"url": "http://x", "headers": {"": "v"}}}}', "header"),
        ('{"x": ' + "[" * 100_000, "recursion"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, content: str, word: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=word) as caught:
        named(str(path))
    assert str(caught.value).startswith("--tool-server") and str(path) in str(caught.value)
