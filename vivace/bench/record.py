"""The JSONL record of a run: SGLang's keys, and what is needed to repeat and to trust it."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import vivace
from vivace.bench.checks import Check, check_requests, check_result
from vivace.bench.environment import host_facts, instruction_set
from vivace.bench.errors import BenchError
from vivace.bench.metrics import BenchmarkMetrics, CacheReport, LatencySummary
from vivace.bench.transport import Record

SECRET_WORDS = ("api_key", "password", "secret", "token_key", "ssl_keyfile_password")
HIDDEN = "(hidden)"
FAILURES_KEPT = 20


def build_record(
    args: argparse.Namespace,
    argv: Sequence[str],
    metrics: BenchmarkMetrics,
    records: Sequence[Record],
    server: Mapping[str, Any],
    *,
    client_cpu: float,
    tokenizer: str,
) -> dict[str, Any]:
    """One JSON object. `server`: the complete answer of /get_server_info (secrets are hidden)."""
    result = run_settings(args) | metric_fields(metrics)
    result["server_info"] = without_secrets(server)
    result["requests_sent"] = len(records)
    result["failures"] = first_failures(records)
    result["command"] = command_line(argv)
    result["time"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    result["versions"] = collect_versions(server)
    result["host"] = host_facts()
    result["instructions"] = instruction_set(server)
    result["tokenizer"] = tokenizer
    result["client_cpu_share"] = client_cpu / max(metrics.duration, 1e-9)
    if args.output_details:
        result |= request_details(records)
    checks = run_checks(result, records, args)
    result["checks"] = [check.as_dict() for check in checks]
    result["trusted"] = all(check.holds for check in checks)
    return result


def run_checks(
    result: Mapping[str, Any], records: Sequence[Record], args: argparse.Namespace
) -> list[Check]:
    found = check_requests(
        result,
        records,
        exact_lengths=not args.disable_ignore_eos,
        plain_prompts=not args.backend.endswith("-chat"),
    )
    return [*check_result(result), *found]


def run_settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "tag": args.tag,
        "backend": args.backend,
        "dataset_name": args.dataset_name,
        "request_rate": "trace" if args.use_trace_timestamps else number(args.request_rate),
        "max_concurrency": args.max_concurrency,
        "sharegpt_output_len": args.sharegpt_output_len,
        "random_input_len": args.random_input_len,
        "random_output_len": args.random_output_len,
        "random_range_ratio": args.random_range_ratio,
        "seed": args.seed,
        "tokenize_prompt": args.tokenize_prompt,
    }


def number(value: float) -> float | str:
    """JSON has no infinity: "inf" is written as a word."""
    return value if value not in (float("inf"), float("-inf")) else str(value)


def metric_fields(metrics: BenchmarkMetrics) -> dict[str, Any]:
    return {
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_input_text_tokens": metrics.total_input,
        "total_input_vision_tokens": 0,
        "total_output_tokens": metrics.total_output,
        "total_output_tokens_retokenized": metrics.total_output_retokenized,
        "request_throughput": metrics.request_throughput,
        "input_throughput": metrics.input_throughput,
        "output_throughput": metrics.output_throughput,
        "output_throughput_retokenized": metrics.output_throughput_retokenized,
        "total_throughput": metrics.total_throughput,
        "total_throughput_retokenized": metrics.total_throughput_retokenized,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
        "concurrency": metrics.concurrency,
        "accept_length": metrics.accept_length,
        "request_goodput": metrics.request_goodput,
        "cache_report": None if metrics.cache is None else cache_report(metrics.cache),
        **latency_fields("e2e_latency", metrics.e2e),
        **latency_fields("ttft", metrics.ttft),
        **latency_fields("tpot", metrics.tpot),
        **latency_fields("itl", metrics.itl),
    }


def cache_report(report: CacheReport) -> dict[str, float]:
    return {
        "total_prompt_tokens": report.total_prompt_tokens,
        "total_cached_tokens": report.total_cached_tokens,
        "cache_hit_rate_pct": report.hit_rate_pct,
        "device_cached_tokens": report.device_cached_tokens,
        "host_cached_tokens": report.host_cached_tokens,
        "storage_cached_tokens": report.storage_cached_tokens,
    }


def latency_fields(name: str, values: LatencySummary) -> dict[str, float]:
    parts = ("mean", "median", "std", "p90", "p95", "p99", "max")
    return {f"{part}_{name}_ms": getattr(values, part) for part in parts}


def request_details(records: Sequence[Record]) -> dict[str, Any]:
    return {
        "input_lens": [record.input_len for record in records],
        "output_lens": [record.output_len for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itl for record in records],
        "latencies": [record.latency for record in records],
        "start_times": [record.start for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error for record in records],
        "cached_tokens": [record.cached_tokens for record in records],
        "cached_tokens_details": [record.cached_tiers for record in records],
    }


def first_failures(records: Sequence[Record]) -> list[dict[str, Any]]:
    failed = [record for record in records if not record.success]
    return [
        {"request": record.query, "turn": record.turn, "error": record.error}
        for record in failed[:FAILURES_KEPT]
    ]


def collect_versions(server: Mapping[str, Any]) -> dict[str, str]:
    return {
        "vivace": vivace.__version__,
        "python": platform.python_version(),
        "server": str(server.get("version") or "unknown"),
    }


def command_line(argv: Sequence[str]) -> str:
    """The command to type again, without the values of --api-key and --header."""
    shown: list[str] = []
    hide = ""
    for word in argv:
        if word.startswith("--"):
            hide = word if word in ("--api-key", "--header") else ""
            if word.startswith(("--api-key=", "--header=")):
                word = word.split("=", 1)[0] + "=" + HIDDEN
            shown.append(word)
        else:
            shown.append(HIDDEN if hide else word)
    return shlex.join(["python", "-m", "vivace.bench_serving", *shown])


def without_secrets(value: Any) -> Any:
    """Keys and passwords that a server puts into its description do not belong in a file."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if item and is_secret(str(key)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return value


def is_secret(key: str) -> bool:
    return any(word in key.lower() for word in SECRET_WORDS)


def why_not_writable(path: Path) -> str:
    """What is wrong with a file to be written; empty when nothing is."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if path.is_dir():
        return f"{path} is a folder; give a file"
    if path.is_fifo() or path.is_socket():
        return f"{path} is a pipe or a socket; give a file"
    if path.is_symlink() and not path.exists():
        return f"{path} is a link to {path.readlink()}, which is not there"
    if path != place and not place.is_dir():
        return f"{path} cannot be written: {place} is not a folder"
    if not os.access(place, os.W_OK):
        return f"{path} cannot be written: no permission, or a read-only disk"
    return ""


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """One line at the end of the file, made when it is not there; BenchError when it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
    except OSError as error:
        raise BenchError(f"the record cannot be written to {path}: {error.strerror}") from error


def write_figures(path: Path, figures: Mapping[str, Any]) -> None:
    """A file of its own, as JSON that people read; BenchError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1))
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}") from error


def default_file(args: argparse.Namespace, date: time.struct_time | None = None) -> Path:
    """SGLang's name: back end, month and day, requests, then lengths or the data set."""
    stamp = time.strftime("%m%d", date or time.localtime())
    start = f"{args.backend}_{stamp}_{args.num_prompts}_"
    if args.dataset_name.startswith("random"):
        return Path(f"{start}{args.random_input_len}_{args.random_output_len}.jsonl")
    return Path(f"{start}{args.dataset_name}.jsonl")
