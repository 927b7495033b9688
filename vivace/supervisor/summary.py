"""What runs now, in one table: shown when the server is ready."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from vivace.config.reading import size_text
from vivace.frontend.sampling_defaults import sampling_defaults
from vivace.frontend.served import served_model
from vivace.observability.log import escape
from vivace.protocol.control import Capacity, Rewrite

if TYPE_CHECKING:
    from vivace.checkpoint.source import ModelSource
    from vivace.config.config import Config

LABEL_WIDTH = 17


@dataclass(frozen=True, kw_only=True)
class Summary:
    """`rows`: (label, value); `rewrites`: one line per setting that was decided for the user;
    `notices`: what the user should know about flags and variables."""

    rows: tuple[tuple[str, str], ...]
    rewrites: tuple[str, ...]
    notices: tuple[str, ...]
    curl: str


def summary_of(config: Config, capacity: Capacity, url: str) -> Summary:
    facts, source = config.facts, config.source
    name = served_model(config, None).name
    rows = (
        ("model", f"{name} ({origin(source)})"),
        ("architecture", f"{facts.architecture}, {facts.layers} layers"),
        ("dtype", str(config.model.dtype)),
        ("parameters", count_text(facts.parameters)),
        ("weights", size_text(capacity.weight_bytes)),
        ("KV cache", f"{capacity.tokens:,} tokens, {size_text(capacity.kv_bytes)}"),
        ("captured steps", size_text(capacity.graph_bytes) if capacity.graph_bytes else "none"),
        ("page size", f"{capacity.page_size} tokens"),
        ("running requests", f"at most {capacity.rows:,}"),
        ("longest request", f"{min(capacity.context, capacity.tokens):,} tokens"),
        ("sampling", sampling_defaults(config).text()),
        ("prefill chunk", chunk_text(config.schedule.chunked_prefill_size)),
        ("device", f"{config.platform.device_name}, {config.platform.cores} cores"),
        ("instructions", capacity.instructions or "none"),
        ("threads", str(config.runtime.cpu_threads or config.platform.cores)),
        ("URL", url),
    )
    rewrites = tuple(decision(rewrite) for rewrite in (*config.rewrites, *capacity.rewrites))
    curl = curl_line(config, url, name)
    return Summary(rows=rows, rewrites=rewrites, notices=config.notices, curl=curl)


def origin(source: ModelSource) -> str:
    """What kind of files the model is read from, and which revision they are."""
    words = [source.format]
    if source.embedded:
        words.append("embedded")
    if source.commit:
        words.append(f"commit {source.commit[:12]}")
    return ", ".join(words)


def decision(rewrite: Rewrite) -> str:
    flag = f"--{rewrite.field.replace('_', '-')}"
    return f"{flag}: {shown(rewrite.before)} -> {shown(rewrite.after)}: {rewrite.reason}"


def curl_line(config: Config, url: str, name: str) -> str:
    """A request to copy. It names the key's place, never the key."""
    path = f"{config.http.fastapi_root_path or ''}/v1/chat/completions"
    message = {"role": "user", "content": "What is gravity?"}
    body = json.dumps({"model": name, "messages": [message], "max_tokens": 32})
    key = " -H 'Authorization: Bearer <api key>'" if config.http.keys else ""
    quoted = body.replace("'", "'\\''")
    return f"curl {url}{path}{key} -H 'Content-Type: application/json' -d '{quoted}'"


def count_text(count: int) -> str:
    for name, size in (("billion", 10**9), ("million", 10**6), ("thousand", 10**3)):
        if count >= size:
            return (
                f"{count / size:.3g} {name}" if count < 1000 * size else f"{count // size:,} {name}"
            )
    return str(count)


def chunk_text(size: int | None) -> str:
    return f"{size:,} tokens" if size is not None and size > 0 else "off"


def shown(value: object) -> str:
    return "unset" if value is None else str(value)


def show(summary: Summary, stream: TextIO) -> None:
    """Coloured on a terminal, plain lines elsewhere."""
    if stream.isatty():
        draw(summary, stream)
    else:
        stream.write("\n".join(plain_lines(summary)) + "\n")
    stream.flush()


def plain_lines(summary: Summary) -> list[str]:
    lines = [f"  {label:<{LABEL_WIDTH}} {escape(value)}" for label, value in summary.rows]
    lines += [f"  {'decided':<{LABEL_WIDTH}} {escape(text)}" for text in summary.rewrites]
    lines += [f"  {'note':<{LABEL_WIDTH}} {escape(text)}" for text in summary.notices]
    return [*lines, f"  {'try':<{LABEL_WIDTH}} {escape(summary.curl)}"]


def draw(summary: Summary, stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in summary.rows:
        table.add_row(label, Text(escape(value), style="bold" if label == "URL" else ""))
    for text in summary.rewrites:
        table.add_row("decided", Text(escape(text), style="yellow"))
    for text in summary.notices:
        table.add_row("note", Text(escape(text), style="yellow"))
    console.print(table)
    console.print(Text(escape(summary.curl), style="cyan"), soft_wrap=True)
