"""`vivace bench offline`: throughput of `vivace.Engine`, without HTTP."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from vivace.arguments import ArgumentParser
from vivace.bench import datasets
from vivace.bench.environment import host_facts, instruction_set
from vivace.bench.errors import run_benchmark
from vivace.bench.flags import (
    REFUSED,
    RefusedFlag,
    add_dataset_flags,
    check_dataset,
    json_object,
    refuse_misspelled,
    result_file,
)
from vivace.bench.record import append_record
from vivace.bench.tokenizer import LocalCodec, TokenCodec
from vivace.bench.workload import BenchRequest
from vivace.config.process_environment import process_environment

PROGRAM = "vivace bench offline"
WARMUP_OUTPUT = 16
ROWS: tuple[tuple[str, str, str], ...] = (
    ("Backend", "backend", ""),
    ("Successful requests", "successful_requests", ""),
    ("Benchmark duration (s)", "total_latency", ".2f"),
    ("Total input tokens", "total_input_tokens", ""),
    ("Total generated tokens", "total_output_tokens", ""),
    ("Last generation throughput (tok/s)", "last_gen_throughput", ".2f"),
    ("Request throughput (req/s)", "request_throughput", ".2f"),
    ("Input token throughput (tok/s)", "input_throughput", ".2f"),
    ("Output token throughput (tok/s)", "output_throughput", ".2f"),
    ("Total token throughput (tok/s)", "total_throughput", ".2f"),
)


class OfflineEngine(Protocol):
    """What this benchmark needs of `vivace.Engine`."""

    def generate(self, **kwargs: Any) -> Any: ...
    def get_server_info(self) -> dict[str, Any]: ...
    def shutdown(self) -> None: ...


def main(argv: list[str]) -> int:
    args, words = parse(argv)
    return run_benchmark(
        PROGRAM, lambda: measure(args, engine_arguments(words, PROGRAM), open_engine, LocalCodec)
    )


def open_engine(arguments: dict[str, Any]) -> OfflineEngine:
    from vivace.api import Engine

    return Engine(**arguments)


def measure(
    args: argparse.Namespace,
    arguments: dict[str, Any],
    make_engine: Callable[[dict[str, Any]], OfflineEngine],
    make_codec: Callable[[str | None], TokenCodec],
) -> int:
    """Load the prompts and the engine, warm up, give it everything at once, print and store."""
    codec = make_codec(arguments.get("tokenizer_path") or arguments.get("model_path"))
    queries = datasets.load(args, codec)
    engine = make_engine(arguments)
    try:
        if not args.skip_warmup:
            generate(engine, warmup_requests(queries), args)
        started = time.perf_counter()
        answers = generate(engine, queries, args)
        seconds = time.perf_counter() - started
        info = engine.get_server_info()
        result = build_result(queries, answers, seconds, info)
        print(f"computed by: {instruction_set(info)}")
        print(render(result))
        if args.result_filename:
            facts = {"host": host_facts(), "instructions": instruction_set(info)}
            append_record(Path(args.result_filename), result | facts)
        if args.do_not_exit:
            input("the engine is kept; press Enter to end it ")
    finally:
        engine.shutdown()
    return report_miscounts(queries, answers, args)


def warmup_requests(queries: Sequence[BenchRequest]) -> list[BenchRequest]:
    """The first prompts with short answers."""
    return [
        BenchRequest(prompt=query.prompt, input_len=query.input_len, output_len=WARMUP_OUTPUT)
        for query in queries[:WARMUP_OUTPUT]
    ]


def generate(
    engine: OfflineEngine, queries: Sequence[BenchRequest], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """All answers, in order."""
    ignore_eos = not args.disable_ignore_eos
    sampling = [
        {"temperature": 0, "max_new_tokens": query.output_len, "ignore_eos": ignore_eos}
        | args.extra_request_body
        for query in queries
    ]
    prompts = [query.prompt for query in queries]
    name = "prompt" if isinstance(prompts[0], str) else "input_ids"
    return engine.generate(**{name: prompts}, sampling_params=sampling)


def build_result(
    queries: Sequence[BenchRequest],
    answers: Sequence[dict[str, Any]],
    seconds: float,
    info: dict[str, Any],
) -> dict[str, Any]:
    """The figures under SGLang's keys."""
    inputs = sum(query.input_len for query in queries)
    outputs = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return {
        "backend": "engine",
        "successful_requests": len(answers),
        "total_latency": seconds,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "last_gen_throughput": last_throughput(info),
        "request_throughput": len(answers) / seconds,
        "input_throughput": inputs / seconds,
        "output_throughput": outputs / seconds,
        "total_throughput": (inputs + outputs) / seconds,
    }


def last_throughput(info: dict[str, Any]) -> float:
    try:
        return float(info["internal_states"][0]["last_gen_throughput"])
    except (KeyError, IndexError, TypeError):
        return float(info.get("last_gen_throughput") or 0.0)


def report_miscounts(
    queries: Sequence[BenchRequest], answers: Sequence[dict[str, Any]], args: argparse.Namespace
) -> int:
    """1 and a message when answers do not have the asked lengths."""
    if args.disable_ignore_eos:
        return 0
    requested = sum(query.output_len for query in queries)
    got = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    if requested == got and len(answers) == len(queries):
        return 0
    text = f"{len(queries)} requests asked {requested} tokens; {len(answers)} answers had {got}"
    print(f"!!! SELF-CHECK VIOLATED: {text}", file=sys.stderr)
    return 1


def render(result: dict[str, Any]) -> str:
    title = f"{' Offline Throughput Benchmark Result ':=^50}"
    lines = [f"{label + ':':<40} {format(result[key], form):<10}" for label, key, form in ROWS]
    return "\n".join(["", title, *lines, "=" * 50])


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [FLAGS]",
        description="Throughput of the engine in this process. Flags that are not listed here are "
        "the server's (see `vivace flags`), for example --model-path.",
        allow_abbrev=False,
    )
    add_dataset_flags(parser, dataset="random")
    add = parser.add_argument
    add("--backend", choices=["engine"], default="engine", help="there is one: vivace.Engine")
    add("--extra-request-body", type=json_object, default={}, help="JSON, over sampling_params")
    add("--disable-ignore-eos", action="store_true", help="answers may end at the end token")
    add("--skip-warmup", action="store_true")
    add("--do-not-exit", action="store_true", help="keep the engine until Enter is pressed")
    add("--result-filename", type=result_file, default="", help="JSONL file to append to")
    add("--profile", action=RefusedFlag, reason=REFUSED["--profile"])
    args, words = parser.parse_known_args(argv)
    refuse_misspelled(parser, words)
    check_dataset(parser, args)
    if args.use_trace_timestamps:
        parser.error("--use-trace-timestamps needs a server: everything is given at once here")
    if args.gsp_num_turns > 1:
        parser.error("--gsp-num-turns above 1 needs a server: use vivace bench serving")
    return args, words


def engine_arguments(words: Sequence[str], program: str) -> dict[str, Any]:
    """Keyword arguments of `vivace.Engine` for the given server flags, typed and checked."""
    from vivace.config.config import all_options, option_value
    from vivace.config.parsing import parse

    options = parse(words, process_environment(), program=program)
    pairs = ((option, option_value(options, option)) for option in all_options())
    return {option.name: value for option, value in pairs if value != option.default}


def context_tokens(arguments: dict[str, Any]) -> int:
    """Those of prompt and answer together that an engine with these arguments takes; nothing is
    loaded. Raises CannotStart."""
    from vivace.config.parsing import from_arguments
    from vivace.launch.configure import configure

    config = configure(from_arguments(**arguments))
    return config.model.context_length or config.facts.context
