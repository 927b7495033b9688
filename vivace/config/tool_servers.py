"""--tool-server: which servers of tools (MCP) answers may call. Nothing else names one."""

from __future__ import annotations

import dataclasses
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from vivace.config.config import Options
from vivace.config.errors import ConfigError
from vivace.config.http import HttpOptions, ToolServerSpec, ToolTransport
from vivace.config.secret import Secret
from vivace.files import read_file

FLAG = "--tool-server"
DEMO = "demo"
LABEL = re.compile(r"[\w.:/\[\]-]{1,64}")
NAMED = re.compile(r"([\w.-]+)=(.+)")
FILE = ".json"
FORMS = f"must be host:port, an http(s) URL, or a {FILE} file with mcpServers"
MOST_SERVERS = 32
MOST_BYTES = 1 << 20
SSE = "/sse"
"""end of the paths of servers that speak the older of the two protocols over HTTP"""
IGNORED = frozenset(("autoApprove", "alwaysAllow", "trust", "description", "name", "icon"))
"""members about the programs that have such files"""
REFUSED = {
    "envFile": "is not read; write its variables into env",
    **dict.fromkeys(("serverUrl", "httpUrl"), "is called url here"),
    **dict.fromkeys(
        ("disabledTools", "includeTools", "excludeTools"),
        "is not done here; requests say allowed_tools",
    ),
}
PLACEHOLDER = re.compile(r"\$\{[^{}\n]+\}")
"""`${input:key}`, `${/}` (VS Code), `${KEY:-other}` (Claude Code), `${user_config.key}`"""
HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+: [^\x00-\x08\x0a-\x1f\x7f]*", re.ASCII)
MOST_SECONDS = 3600
"""Cline's limit of a `timeout`: larger ones are Gemini CLI's, in milliseconds."""


class ServerEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An entry of a file's `mcpServers` (Claude Desktop, Cursor) or `servers` (VS Code), without
    what is IGNORED."""

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    url: str | None = None
    headers: dict[str, str] = {}
    type: Literal["sse", "http", "streamable-http", "streamableHttp", "stdio"] | None = None
    disabled: bool = False
    cwd: str | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0, le=1000 * MOST_SECONDS)] | None = None


class ServerFile(msgspec.Struct, kw_only=True, rename="camel"):
    """Other members of the file are those of other programs."""

    mcp_servers: dict[str, dict[str, Any]] = {}
    servers: dict[str, dict[str, Any]] = {}


def tool_servers(options: Options) -> list[str]:
    """The value of the flag, without looking into files."""
    list(named_servers(options.http.tool_server))
    return []


def with_tool_servers(http: HttpOptions) -> HttpOptions:
    """The options with the servers that the flag names, those of files included. Raises
    ConfigError."""
    found: list[ToolServerSpec] = []
    for one in named_servers(http.tool_server):
        found += list(read_server_file(one)) if isinstance(one, str) else [one]
    labels = [spec.label for spec in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"{FLAG}: two servers are called {label}; give one another name")
    if len(found) > MOST_SERVERS:
        raise ConfigError(f"{FLAG}: {len(found)} servers; at most {MOST_SERVERS} are possible")
    return dataclasses.replace(http, tool_servers=tuple(found))


def named_servers(value: str | None) -> Iterator[ToolServerSpec | str]:
    """The servers that a value names, and the paths of its files. Raises ConfigError."""
    if not value or value == DEMO:  # which is not available, and told so
        return
    for part in (part.strip() for part in value.split(",")):
        yield part if part.endswith(FILE) else named_server(part)


def named_server(text: str) -> ToolServerSpec:
    """`host:port`, which answers at /sse as SGLang's do, or a URL; `label=` before either."""
    named = NAMED.fullmatch(text)
    label, place = named.groups() if named else ("", text)
    where, url = f"{FLAG} {text}", place
    if "://" not in place:
        if not place.rpartition(":")[2].isdecimal():
            raise ConfigError(f"{where}: {FORMS}")
        url = f"http://{place}{SSE}"
    checked = check_url(where, url)
    return ToolServerSpec(
        label=check_label(where, label or checked), transport=transport_by_path(url), url=url
    )


def transport_by_path(url: str) -> ToolTransport:
    return "sse" if urlsplit(url).path.rstrip("/").endswith(SSE) else "http"


def check_url(where: str, url: str) -> str:
    """Its host and port. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    usable = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not usable or parts.username is not None or any(c.isspace() for c in url):
        raise ConfigError(f"{where}: {FORMS}")
    return parts.netloc


def check_label(where: str, label: str) -> str:
    if LABEL.fullmatch(label) is None:
        wanted = "1 to 64 letters, digits and . : / _ -"
        raise ConfigError(f"{where}: {label[:80]!r} is no label, which has {wanted}")
    return label


# -- files ----------------------------------------------------------------------------------------


def read_server_file(path: str) -> Iterator[ToolServerSpec]:
    """The servers of a file. Raises ConfigError."""
    where = f"{FLAG} {path}"
    try:
        text = read_file(path, MOST_BYTES).removeprefix(BOM_UTF8)
        file = msgspec.json.decode(text, type=ServerFile)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        plain = "; remove comments and trailing commas" if "malformed" in str(error) else ""
        raise ConfigError(f"{where}: {error}{plain}") from None
    lists = {"mcpServers": file.mcp_servers, "servers": file.servers}
    if not any(lists.values()):
        raise ConfigError(f"{where}: has neither mcpServers nor servers")
    for key, entries in lists.items():
        for label, given in entries.items():
            if given.get("disabled") is not True:
                yield read_entry(f"{where}: {key}.{label}", label, given)


def read_entry(where: str, label: str, given: dict[str, Any]) -> ToolServerSpec:
    check_label(where, label)
    for name in given:
        if name in REFUSED and given[name]:
            raise ConfigError(f"{where}.{name}: {REFUSED[name]}")
    try:
        known = {name: given[name] for name in given if name not in IGNORED | REFUSED.keys()}
        entry = msgspec.convert(known, ServerEntry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}; correct or remove it") from None
    if (entry.command is None) == (entry.url is None):
        raise ConfigError(f"{where}: needs either command or url")
    words, url, seconds = (entry.command or "", *entry.args), entry.url or "", entry.timeout
    texts = (*words, entry.cwd or "", url, *entry.env.values(), *entry.headers.values())
    if PLACEHOLDER.search("\n".join(texts)):
        raise ConfigError(f"{where}: ${{...}} is not filled in; write the value in its place")
    for name, value in entry.headers.items():
        if HEADER.fullmatch(f"{name}: {value}") is None:
            raise ConfigError(f"{where}.headers: {name!r:.80} is no header of one line; correct it")
    ignored = IGNORED | {"headers"} if entry.url is None else IGNORED | {"args", "env", "cwd"}
    spec = ToolServerSpec(
        label=label,
        transport="stdio",
        timeout=seconds and seconds / (1000 if seconds > MOST_SECONDS else 1),
        ignored=tuple(name for name in given if name in ignored),
    )
    if entry.command is not None:
        if not entry.command or any("\0" in text for text in (*texts, *entry.env)):
            raise ConfigError(f"{where}.command: is empty, or has a NUL character in it")
        env = secrets(entry.env)
        return dataclasses.replace(spec, command=words, env=env, cwd=entry.cwd or None)
    check_url(f"{where}.url", url)
    chosen = (
        transport_by_path(url) if entry.type is None else "sse" if entry.type == "sse" else "http"
    )
    return dataclasses.replace(spec, transport=chosen, url=url, headers=secrets(entry.headers))


def secrets(values: dict[str, str]) -> dict[str, Secret]:
    return {name: Secret(value) for name, value in values.items()}
