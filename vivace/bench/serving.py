"""`vivace bench serving`: load a server, measure, print SGLang's block, store a record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivace.arguments import http_address
from vivace.bench import datasets
from vivace.bench.backends import BACKENDS
from vivace.bench.errors import BenchError, run_benchmark
from vivace.bench.flags import PROGRAM, parse
from vivace.bench.http_backends import RequestSettings
from vivace.bench.http_json import Unauthorized, ask, ask_or_none
from vivace.bench.metrics import BenchmarkMetrics, calculate_metrics, split_chunk_gaps
from vivace.bench.record import append_record, build_record, number
from vivace.bench.report import Setting, explain, render
from vivace.bench.runner import BenchLoad, Outcome, measure_load, wait_ready, with_loop
from vivace.bench.tokenizer import TokenCodec, choose_codec
from vivace.bench.workload import BenchRequest
from vivace.config.process_environment import client_key, is_key
from vivace.errors import CannotStart

CodecChoice = Callable[[argparse.Namespace, "Server"], tuple[TokenCodec, str]]


@dataclass(frozen=True)
class Server:
    """What the server says about itself, and how to reach it."""

    base_url: str
    headers: Mapping[str, str]
    model: str
    described: Mapping[str, Any]
    """/get_model_info; empty when there is none."""
    state: Mapping[str, Any]
    """/get_server_info before the run; empty when there is none."""


def main(argv: list[str]) -> int:
    """0 when every request succeeded and the arithmetic holds, 1 otherwise."""
    args = parse(argv)
    return run_benchmark(PROGRAM, lambda: measure(args, argv, chosen_codec))


def measure(args: argparse.Namespace, argv: Sequence[str], codec_choice: CodecChoice) -> int:
    """The whole benchmark, from the flags to the record."""
    datasets.check_file(args)
    server = find_server(args)
    codec, reason = codec_choice(args, server)
    print(reason)
    queries = datasets.load(args, codec)
    load = bench_load(args, server)
    outcome = with_loop(measure_load(load, queries))
    state = server_state(server)
    metrics = evaluate(args, outcome, codec, accept_length(state, args.pd_separated))
    record = build_record(
        args,
        argv,
        metrics,
        outcome.records,
        state,
        client_cpu=outcome.client_cpu,
        tokenizer=codec.name,
    )
    report(args, metrics, outcome, queries)
    print(f"computed by: {record['instructions']}")
    append_record(Path(args.output_file), record)
    print(f"record appended to {args.output_file}")
    return verdict(record)


def find_server(args: argparse.Namespace) -> Server:
    """Wait for the server and ask what it serves."""
    backend = BACKENDS[args.backend]
    base_url = (args.base_url or join_address(args.host, args.port or backend.port)).rstrip("/")
    headers = build_headers(args)
    if args.ready_check_timeout_sec > 0:
        with_loop(
            wait_ready(
                BenchLoad(
                    backend=backend,
                    base_url=base_url,
                    settings=RequestSettings(),
                    headers=headers,
                    ready_timeout=args.ready_check_timeout_sec,
                )
            )
        )
    described: Mapping[str, Any] = {}
    if backend.control:
        described = ask_or_none(f"{base_url}/get_model_info", headers=headers) or {}
    model = args.served_model_name or args.model or first_model(base_url, headers)
    server = Server(base_url, headers, model, described, {})
    if not backend.control:
        return server
    return Server(base_url, headers, model, described, server_state(server))


def join_address(host: str, port: int) -> str:
    """`host` may be an IPv6 address with or without brackets. Raises CannotStart."""
    host = "127.0.0.1" if host == "0.0.0.0" else host.strip("[]")
    try:
        return http_address(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    except argparse.ArgumentTypeError:
        raise CannotStart(f"--host {host!r} is neither a name nor an address") from None


def build_headers(args: argparse.Namespace) -> dict[str, str]:
    """The key and the headers of --header KEY=VALUE."""
    key = client_key(args.api_key)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for item in args.header or []:
        name, separator, value = item.partition("=")
        if not (separator and is_key(name.strip()) and name.strip() and value.isprintable()):
            raise BenchError(f"--header {item!r} must be KEY=VALUE, of visible characters")
        headers[name.strip()] = value.strip()
    return headers


def first_model(base_url: str, headers: Mapping[str, str]) -> str:
    try:
        return str(ask(f"{base_url}/v1/models", headers=headers)["data"][0]["id"])
    except Unauthorized:
        raise
    except (BenchError, TypeError, KeyError, IndexError) as error:
        raise BenchError(
            f"{base_url}/v1/models names no model; give --model or --served-model-name"
        ) from error


def server_state(server: Server) -> Mapping[str, Any]:
    for path in ("/get_server_info", "/server_info"):
        state = ask_or_none(server.base_url + path, headers=server.headers)
        if isinstance(state, dict):
            return state
    return {}


def chosen_codec(args: argparse.Namespace, server: Server) -> tuple[TokenCodec, str]:
    return choose_codec(
        args.tokenizer,
        args.model,
        server.base_url,
        server.headers,
        server.described,
    )


def bench_load(args: argparse.Namespace, server: Server) -> BenchLoad:
    state = server.state
    incremental = state.get("incremental_streaming_output", state.get("stream_output", False))
    return BenchLoad(
        backend=BACKENDS[args.backend],
        base_url=server.base_url,
        settings=request_settings(args, server.model),
        headers=server.headers,
        rate=args.request_rate,
        concurrency=args.max_concurrency,
        trace=args.use_trace_timestamps,
        seed=args.seed,
        warmup=args.warmup_requests,
        flush=args.flush_cache,
        flush_timeout=args.flush_cache_timeout,
        connection_per_request=args.connection_per_request,
        progress=not args.disable_tqdm,
        incremental=bool(incremental),
    )


def request_settings(args: argparse.Namespace, model: str) -> RequestSettings:
    return RequestSettings(
        model=model,
        stream=not args.disable_stream,
        temperature=args.temperature,
        top_p=args.top_p,
        ignore_eos=not args.disable_ignore_eos,
        return_logprob=args.return_logprob,
        top_logprobs=args.top_logprobs_num,
        token_ids_logprob=tuple(args.token_ids_logprob),
        logprob_start_len=args.logprob_start_len,
        return_routed_experts=args.return_routed_experts,
        cache_report=args.cache_report,
        extra=args.extra_request_body,
    )


def accept_length(state: Mapping[str, Any], separated: bool) -> float | None:
    """`avg_spec_accept_length` of the first internal state (of the first decode server)."""
    try:
        source = state["decode"][0] if separated else state
        value = source["internal_states"][0].get("avg_spec_accept_length")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return float(value) if value else None


def evaluate(
    args: argparse.Namespace, outcome: Outcome, codec: TokenCodec, accepted: float | None
) -> BenchmarkMetrics:
    """Count the answers again, divide chunks where the server speculates, and compute."""
    records = outcome.records
    retokenized = [len(ids) for ids in codec.encode([record.text for record in records])]
    if accepted and BACKENDS[args.backend].api_format != "native":
        pieces = [codec.encode(record.pieces) for record in records]
        split_chunk_gaps(records, [[len(ids) for ids in piece] for piece in pieces])
    return calculate_metrics(
        records,
        outcome.duration,
        retokenized=retokenized,
        accept_length=accepted,
        goodput=dict(args.goodput) if args.goodput else None,
        streamed=not args.disable_stream,
    )


def report(
    args: argparse.Namespace,
    metrics: BenchmarkMetrics,
    outcome: Outcome,
    queries: Sequence[BenchRequest],
) -> None:
    """Everything that is shown: requests, block, definitions, bars, picture."""
    if args.print_requests:
        print_requests(queries, outcome)
    setting = Setting(
        backend=args.backend,
        request_rate="trace" if args.use_trace_timestamps else number(args.request_rate),
        max_concurrency=args.max_concurrency,
        cache_report=args.cache_report,
    )
    print(render(metrics, setting))
    if args.explain:
        print(explain(metrics, setting))
    if args.plot_throughput:
        from vivace.bench.plot import throughput_bars

        print(throughput_bars(outcome.records))
    if args.plot is not None:
        from vivace.bench.plot import draw

        print(draw(outcome.records, Path(args.plot), plot_title(args, outcome)))


def plot_title(args: argparse.Namespace, outcome: Outcome) -> str:
    """What was measured, for the picture."""
    limits = f"rate {number(args.request_rate)}"
    if args.max_concurrency:
        limits += f", at most {args.max_concurrency} at once"
    what = f"{args.backend} {args.model or ''}".strip()
    return (
        f"{what}: {args.dataset_name}, {len(outcome.records)} requests, {limits}, "
        f"{outcome.duration:.1f} s"
    )


def print_requests(queries: Sequence[BenchRequest], outcome: Outcome) -> None:
    for record in outcome.records:
        shown = {
            "request": record.query,
            "turn": record.turn,
            "prompt": queries[record.query].prompt,
            "answer": record.text,
            "error": record.error,
        }
        print(json.dumps(shown, ensure_ascii=False))


def verdict(record: Mapping[str, Any]) -> int:
    """Say loudly what is wrong; the exit code."""
    for failure in record["failures"]:
        print(f"FAILED request {failure['request']}: {failure['error']}", file=sys.stderr)
    if record["failed"]:
        print(f"{record['failed']} of {record['requests_sent']} requests failed", file=sys.stderr)
    broken = [check for check in record["checks"] if not check["holds"]]
    for check in broken:
        text = f"{check['name']}: {check['left']:g} is not {check['right']:g}"
        print(f"!!! SELF-CHECK VIOLATED: {text}", file=sys.stderr)
    if broken:
        print("!!! do not trust these figures; the record is marked", file=sys.stderr)
    return 1 if broken or record["failed"] else 0
