"""Flags of the HTTP server: addresses, keys, who may call, what answers hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vivace.config.option import no_effect, not_available, option
from vivace.config.secret import Secret
from vivace.parsers.names import (
    AUTO,
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    UNKNOWN_REASONING_PARSERS,
    UNKNOWN_TOOL_CALL_PARSERS,
)

SERVER = "vivace"
"""The Server header: not which HTTP library runs here, nor its version."""
UNKNOWN_FORMAT = not_available("this format is not supported yet", "use auto, or leave it out")
NO_DEMO = not_available(
    "SGLang's demo tools search the web and run Python that the model has written; this server "
    "runs nothing of a model's",
    "name servers of your own",
)
NO_TLS = not_available("TLS is not supported yet", "put a TLS proxy in front")


ToolTransport = Literal["sse", "http", "stdio"]


@dataclass(frozen=True, kw_only=True)
class ToolServerSpec:
    """One server of tools: where it answers, or the command that becomes it. `label`: what
    requests call it."""

    label: str
    transport: ToolTransport
    url: str = ""
    headers: dict[str, Secret] = field(default_factory=dict[str, Secret])
    command: tuple[str, ...] = ()
    env: dict[str, Secret] = field(default_factory=dict[str, Secret])
    """for the command, besides PATH and the like"""
    cwd: str | None = None
    """where the command runs, if not where the server does"""
    timeout: float | None = None
    """seconds of a call, if it says so"""
    ignored: tuple[str, ...] = ()
    """what its file says besides, to others"""

    @property
    def place(self) -> str:
        """For messages."""
        return self.url or self.command[0]


@dataclass(frozen=True)
class HttpOptions:
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(30000, "Port to listen on.")
    api_key: Secret | None = option(
        None, "Key that every path but health needs, as a bearer token.", secret=True
    )
    admin_api_key: Secret | None = option(
        None, "Key that management paths need instead of --api-key.", secret=True
    )
    api_key_file: str | None = option(
        help="File with one key per line, each of another client. Others must not read it."
    )
    admin_api_key_file: str | None = option(
        help="File with one management key per line. Others must not read it."
    )
    file_keys: tuple[Secret, ...] = ()
    """what --api-key-file holds"""
    admin_file_keys: tuple[Secret, ...] = ()
    allowed_origins: tuple[str, ...] | None = option(
        help="Web pages that may use it without a key, as https://ui.example; * for all.",
        trivial=[()],
    )
    allowed_hosts: tuple[str, ...] | None = option(
        help="Names that browsers may call this server by, besides localhost and addresses; "
        "* for all.",
        trivial=[()],
    )
    insecure: bool = option(False, "Allow a non-loopback host without a key.")
    skip_server_warmup: bool = option(False, "Be ready without having generated anything.")
    warmups: str | None = option(
        help="Comma list of named warm-up routines.",
        trivial=[""],
        cpu=not_available(
            "SGLang's routines (voice_chat, whisper_autodetect, compile-deep-gemm) prepare audio "
            "models, grammars and GPU kernels, which are not supported yet; a short generation "
            "warms up every start",
            "leave it out",
        ),
    )
    fastapi_root_path: str | None = option(
        help="URL prefix behind a path-rewriting proxy.", trivial=[""]
    )
    grpc_mode: bool = option(
        False,
        "Serve gRPC instead of HTTP.",
        aliases=["smg-grpc-mode"],
        cpu=not_available("gRPC is not supported yet", "use the HTTP API"),
    )
    enable_cache_report: bool = option(
        False, "Report cached tokens in the usage of OpenAI answers."
    )
    strict_model_name: bool = option(
        False, "Answer 404 to a model name that is not served; else the served model answers."
    )
    file_storage_path: str | None = option(
        help="Directory of uploaded files.", cpu=no_effect("there are no uploads")
    )
    uvicorn_access_log_exclude_prefixes: tuple[str, ...] | None = option(
        help="Path prefixes that the access log leaves out, beside successful probes."
    )
    tool_call_parser: str | None = option(
        help="The format of the model's tool calls (docs/tools.md); auto: by its chat template. "
        "Default: calls stay in the text.",
        choices=(AUTO, *TOOL_CALL_PARSERS, *UNKNOWN_TOOL_CALL_PARSERS),
        values=dict.fromkeys(UNKNOWN_TOOL_CALL_PARSERS, UNKNOWN_FORMAT),
    )
    reasoning_parser: str | None = option(
        help="The format of the model's thinking, to be split from the answer (docs/tools.md); "
        "auto: by its chat template. Default: it stays in the text.",
        choices=(AUTO, *REASONING_PARSERS, *UNKNOWN_REASONING_PARSERS),
        values=dict.fromkeys(UNKNOWN_REASONING_PARSERS, UNKNOWN_FORMAT),
    )
    tool_server: str | None = option(
        help="Servers of tools (MCP) that answers of /v1/responses may call: a comma list of "
        "host:port (SSE), URLs and .json files with mcpServers; label= before a place names it.",
        values={"demo": NO_DEMO},
    )
    tool_servers: tuple[ToolServerSpec, ...] = ()
    """what --tool-server names"""
    ssl_keyfile: str | None = option(help="File with the TLS key.", cpu=NO_TLS)
    ssl_certfile: str | None = option(help="File with the TLS certificate.", cpu=NO_TLS)

    @property
    def keys(self) -> tuple[Secret, ...]:
        """Of flag or variable, then of the file: a client's number is its place here."""
        return (*((self.api_key,) if self.api_key else ()), *self.file_keys)

    @property
    def admin_keys(self) -> tuple[Secret, ...]:
        return (*((self.admin_api_key,) if self.admin_api_key else ()), *self.admin_file_keys)
