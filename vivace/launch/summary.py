"""What runs now, in one table: shown when the server is ready."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from vivace.checkpoint.pooling import POOLED
from vivace.config.draft_sizes import NGRAM
from vivace.config.parallelism import requested_sizes
from vivace.config.values import size_text
from vivace.frontend.served_model import sampling_defaults, served_model
from vivace.observability.log import escape
from vivace.protocol.messages import Capacity, Rewrite
from vivace.terminal import NARROWEST, fill_command, wrap_line

if TYPE_CHECKING:
    from rich.text import Text

    from vivace.checkpoint.source import ModelSource
    from vivace.config.config import Config

LABEL_WIDTH = 16
TRY = "try"
CONSEQUENCES = ("kernels",)
"""rules whose decisions are felt, whoever made them: what runs is slower"""

Row = tuple[str, str]
"""(label, value)"""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """`rows`: what runs; `changed`: one line per setting that was decided for the user; `notices`:
    what the user should know about flags and variables; `curl`: a request to copy, in the parts
    between which a line may end."""

    rows: tuple[Row, ...]
    changed: tuple[str, ...]
    notices: tuple[str, ...]
    curl: tuple[str, ...]
    url: str

    def lines(self) -> list[Row]:
        """In the order they are shown: where to find the server comes last."""
        found = [*self.rows, *(("changed", text) for text in self.changed)]
        found += [("note", text) for text in self.notices]
        return [*found, (TRY, " ".join(self.curl)), ("URL", self.url)]


def build_summary(
    config: Config, capacity: Capacity, url: str, tools: Sequence[str] = ()
) -> Summary:
    """`tools`: what each tool server has."""
    name = served_model(config, None).name
    rows = (
        ("model", ", ".join((name, *origin(config.source), *model_size(config)))),
        ("memory", memory_text(config, capacity)),
        ("limits", limits_text(capacity, config.parallel.dp_size)),
        answer_row(config),
        ("device", device_text(config, capacity)),
        *drafts(config, capacity),
        *processes(config),
        *(("tools", text) for text in tools),
    )
    return Summary(
        rows=(*rows, *details(config, capacity)) if config.logging.verbose else rows,
        changed=decisions(config, (*config.rewrites, *capacity.rewrites)),
        notices=config.notices,
        curl=curl(config, url, name),
        url=url,
    )


def processes(config: Config) -> list[Row]:
    """Where there are several; what is said above is of one of them."""
    engines, ranks = config.parallel.dp_size, requested_sizes(config).engine_ranks
    found = []
    if engines > 1:
        balance = config.parallel.load_balance_method
        found.append(f"{engines} engines, each with the memory and limits above ({balance})")
    if ranks > 1:
        found.append(f"{ranks} ranks of each engine, with the weights and KV above")
    if (nodes := config.parallel.nnodes) > 1:
        found.append(f"{nodes} nodes, this one at {config.parallel.dist_init_addr}")
    return [("processes", "; ".join(found))] if found else []


def drafts(config: Config, capacity: Capacity) -> list[Row]:
    asked = config.speculative
    if not config.draft_width:
        return []
    path = asked.speculative_draft_model_path if asked.speculative_algorithm != NGRAM else None
    model = f" of {path}" if path else ""
    most = "always" if asked.speculative_fixed_width else "at most"
    text = f"{asked.speculative_algorithm}{model}, {most} {config.draft_width} tokens in a step"
    if why := capacity.undivided_draft:
        text += f"; each rank has all of it: {why}"
    return [("drafts", text)]


def answer_row(config: Config) -> Row:
    """What becomes of the model's numbers where a request does not say it."""
    pooling = config.pooling
    if pooling is None:
        return "sampling", sampling_defaults(config).text()
    if (count := count_labels(config)) is not None:
        return "answers", f"{count} number{'s' if count > 1 else ''} of {POOLED[pooling.mode]}"
    text = f"{POOLED[pooling.mode]}, {'' if pooling.normalize else 'not '}normalized"
    return "embeddings", text if pooling.stated else f"{text} (the default; its files do not say)"


def count_labels(config: Config) -> int | None:
    """None: the model has no head that judges texts."""
    pooled = config.facts.pooled
    return None if pooled is None or pooled.classifier is None else len(pooled.classifier.labels)


def model_size(config: Config) -> list[str]:
    parameters = config.facts.parameters
    return [f"{count_text(parameters)} parameters"] if parameters else []


def memory_text(config: Config, capacity: Capacity) -> str:
    """Of the pool, what it may take at most; and of that, cached prefixes."""
    kv = f"{capacity.tokens:,} tokens, {size_text(capacity.kv_bytes)}"
    if (share := share_bytes(capacity)) is not None:
        prefixes = "no prefixes" if prefixes_are_off(config) else f"prefixes {size_text(share)}"
        kv = f"up to {kv} ({prefixes})"
    return f"{size_text(capacity.weight_bytes)} of weights; KV {kv}"


def share_bytes(capacity: Capacity) -> int | None:
    """Which part of the pool cached prefixes take at first; None where it is no question."""
    share = capacity.cache_share
    return None if share is None else capacity.kv_bytes * share // capacity.pages


def prefixes_are_off(config: Config) -> bool:
    return config.memory.disable_radix_cache


def share_text(config: Config, capacity: Capacity) -> str:
    if prefixes_are_off(config):
        return "off"
    share = share_bytes(capacity)
    if share is None:
        return "up to the whole pool"
    return f"up to {size_text(share)}, more when they keep coming back"


def limits_text(capacity: Capacity, engines: int) -> str:
    longest = min(capacity.context, capacity.tokens)
    where = " in each engine" if engines > 1 else ""
    requests = "1 request" if capacity.rows == 1 else f"{capacity.rows:,} requests"
    return f"{requests} at once{where}, {longest:,} tokens each"


def device_text(config: Config, capacity: Capacity) -> str:
    threads = config.runtime.cpu_threads or config.platform.cores
    words = [config.platform.device_name, f"{threads} thread{'s' if threads > 1 else ''}"]
    return ", ".join([*words, *([capacity.instructions] if capacity.instructions else [])])


def details(config: Config, capacity: Capacity) -> tuple[Row, ...]:
    """With --verbose."""
    facts = config.facts
    return (
        ("architecture", f"{facts.architecture}, {facts.layers} layers"),
        ("dtype", str(config.model.dtype)),
        ("cached prefixes", share_text(config, capacity)),
        ("captured steps", size_text(capacity.graph_bytes) if capacity.graph_bytes else "none"),
        ("page size", f"{capacity.page_size} tokens"),
        ("prefill chunk", chunk_text(config.schedule.chunked_prefill_size)),
        ("cores", str(config.platform.cores)),
    )


def decisions(config: Config, rewrites: Iterable[Rewrite]) -> tuple[str, ...]:
    """What was typed and does not run so, what the device did not allow, and what is felt;
    everything with --verbose."""
    shown = [
        rewrite
        for rewrite in rewrites
        if config.logging.verbose
        or rewrite.typed
        or rewrite.rule in CONSEQUENCES
        or rewrite not in config.rewrites
    ]
    return tuple(decision(rewrite) for rewrite in shown)


def origin(source: ModelSource) -> list[str]:
    """What kind of files the model is read from, and which revision they are."""
    words = [source.format]
    if source.embedded:
        words.append("embedded")
    if source.commit:
        words.append(f"commit {source.commit[:12]}")
    return words


def decision(rewrite: Rewrite) -> str:
    flag = f"--{rewrite.field.replace('_', '-')}"
    return f"{flag}: {value_text(rewrite.before)} -> {value_text(rewrite.after)}: {rewrite.reason}"


def curl(config: Config, url: str, name: str) -> tuple[str, ...]:
    """A request to copy. It names the key's place, never the key."""
    root, embeds = config.http.fastapi_root_path or "", config.pooling is not None
    vectors = "embeddings" if count_labels(config) is None else "classify"
    path = f"{root}/v1/{vectors if embeds else 'chat/completions'}"
    model = json.dumps(name).replace("'", "'\\''")
    step = config.facts.pooled.step_token if config.facts.pooled else None
    text = '"What is gravity?"' if step is None else f"[{step}]"
    return (
        f"curl {url}{path}",
        *(["-H 'Authorization: Bearer <api key>'"] if config.http.keys else []),
        "-H 'Content-Type: application/json'",
        f'-d \'{{"model": {model},',
        *(
            [f'"input": {text}}}\'']
            if embeds
            else [
                '"messages": [{"role": "user",',
                '"content": "What is gravity?"}],',
                '"max_tokens": 32}\'',
            ]
        ),
    )


def count_text(count: int) -> str:
    for name, size in (("billion", 10**9), ("million", 10**6), ("thousand", 10**3)):
        if count >= size:
            return (
                f"{count / size:.3g} {name}" if count < 1000 * size else f"{count // size:,} {name}"
            )
    return str(count)


def chunk_text(size: int | None) -> str:
    return f"{size:,} tokens" if size is not None and size > 0 else "off"


def value_text(value: object) -> str:
    return "unset" if value is None else str(value)


def plain_lines(summary: Summary) -> list[str]:
    return [f"  {label:<{LABEL_WIDTH}} {escape(value)}" for label, value in summary.lines()]


def styled_lines(summary: Summary, columns: int) -> Iterator[Text]:
    """For a terminal; no value is wider than it, and the command can still be copied."""
    from rich.text import Text

    styles = {"changed": "yellow", "note": "yellow", TRY: "cyan", "URL": "bold"}
    width = max(columns - LABEL_WIDTH - 3, NARROWEST)
    for label, value in summary.lines():
        parts = map(escape, summary.curl)
        lines = fill_command(parts, width) if label == TRY else wrap_line(escape(value), width, "")
        for head, line in zip_longest((label,), lines, fillvalue=""):
            margin = f"  {head:<{LABEL_WIDTH}} "
            yield Text.assemble((margin, "dim"), (line, styles.get(label, "")))
