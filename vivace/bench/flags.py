"""Flags of `vivace bench serving`: SGLang's names and defaults, and a few of ours.

A flag of SGLang's tool that is not offered still parses, and stops with the reason.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from vivace.arguments import ArgumentParser, finite_number, http_address, whole_number
from vivace.bench import backends, datasets
from vivace.bench.metrics import GOODPUT_KEYS
from vivace.bench.plot import why_not_drawable
from vivace.bench.record import default_file, why_not_writable
from vivace.config.process_environment import KEY_VARIABLES
from vivace.errors import nearest

FLUSH_TIMEOUT = 60.0

IMAGES = "Vivace serves text; this client sends no images"
LORA = "this client sends no adapter names"
PROFILE = "Vivace has no /start_profile; use --output-details and --plot to see where time goes"
NO_DATASET = "it belongs to a data set that is not offered"
MOONCAKE = "data set mooncake is not offered; custom with `timestamp` fields replays any trace"
RUST = "there is one client, and its share of the CPU is stored in the record (client_cpu_share)"

REFUSED: dict[str, str] = {
    "--dataset-offset": NO_DATASET,
    "--agentic-max-turns": NO_DATASET,
    "--speed-bench-category": NO_DATASET,
    "--speed-bench-output-len": NO_DATASET,
    "--image-count": IMAGES,
    "--image-resolution": IMAGES,
    "--random-image-count": IMAGES,
    "--image-format": IMAGES,
    "--image-content": IMAGES,
    "--profile": PROFILE,
    "--profile-activities": PROFILE,
    "--profile-start-step": PROFILE,
    "--profile-steps": PROFILE,
    "--profile-num-steps": PROFILE,
    "--profile-by-stage": PROFILE,
    "--profile-stages": PROFILE,
    "--profile-output-dir": PROFILE,
    "--profile-prefix": PROFILE,
    "--profile-prefill-url": PROFILE,
    "--profile-decode-url": PROFILE,
    "--lora-name": LORA,
    "--lora-request-distribution": LORA,
    "--lora-zipf-alpha": LORA,
    "--mooncake-slowdown-factor": MOONCAKE,
    "--mooncake-num-rounds": MOONCAKE,
    "--mooncake-workload": MOONCAKE,
    "--fake-prefill": "it needs a server that invents KV; Vivace's servers compute theirs",
    "--rust-client": RUST,
    "--rust-worker-threads": RUST,
}


class RefusedFlag(argparse.Action):
    """A known flag that is not offered: using it stops with the reason."""

    def __init__(self, *, reason: str, **kwargs: Any) -> None:
        super().__init__(
            nargs="*",
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"not offered: {reason}",
            **kwargs,
        )
        self._reason = reason

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(f"{option_string} is not offered: {self._reason}")


PROGRAM = "vivace bench serving"


def build_parser(program: str = PROGRAM) -> ArgumentParser:
    parser = ArgumentParser(
        prog=program,
        usage="%(prog)s [FLAGS]",
        description="Measure a server under load: SGLang's bench_serving, with its definitions.",
        allow_abbrev=False,
    )
    _server_flags(parser.add_argument_group("server"))
    add_dataset_flags(parser)
    _load_flags(parser.add_argument_group("load"))
    _request_flags(parser.add_argument_group("requests"))
    _report_flags(parser.add_argument_group("report"))
    refused = parser.add_argument_group("flags of SGLang's tool that are not offered")
    for flag, reason in REFUSED.items():
        refused.add_argument(flag, action=RefusedFlag, reason=reason)
    return parser


def parse(argv: Sequence[str], program: str = PROGRAM) -> argparse.Namespace:
    """The settings of a run; SystemExit(2) with a message on stderr when they do not fit."""
    parser = build_parser(program)
    args = parser.parse_args(argv)
    if args.backend in backends.NOT_OFFERED:
        parser.error(f"--backend {args.backend}: {backends.NOT_OFFERED[args.backend]}")
    check_dataset(parser, args)
    if args.max_concurrency is not None and args.max_concurrency < 1:
        parser.error("--max-concurrency must be at least 1")
    args.output_file = args.output_file or str(default_file(args))
    if problem := why_not_writable(Path(args.output_file)):
        parser.error(f"--output-file {problem}")
    if args.plot is not None:
        args.plot = args.plot or default_file(args).with_suffix(".png").name
        if problem := why_not_drawable(Path(args.plot)):
            parser.error(f"--plot {problem}")
    if args.use_trace_timestamps and args.dataset_name not in ("custom", "openai"):
        parser.error("--use-trace-timestamps needs data set custom or openai with timestamps")
    return args


def refuse_misspelled(parser: ArgumentParser, stray: Sequence[str]) -> None:
    """Words that are not the benchmark's are the server's, unless they are close to the
    benchmark's: then the program ends."""
    from vivace.config.config import all_options

    theirs = {flag for option in all_options() for flag in option.flags}
    flags = [word for word in stray if word.partition("=")[0] not in theirs]
    meant = [flag for flag in flags if flag.startswith("--") and nearest(flag, parser.flags())]
    if meant:
        parser.refuse(meant, theirs)


def check_dataset(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse what the data set cannot do, before anything is loaded."""
    reason = datasets.NOT_OFFERED.get(args.dataset_name)
    if reason is not None:
        parser.error(f"--dataset-name {args.dataset_name} is not offered: {reason}")
    if args.num_prompts < 1:
        parser.error("--num-prompts must be at least 1")


def _server_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--backend",
        default="sglang",
        choices=[*backends.BACKENDS, *backends.NOT_OFFERED],
        metavar="NAME",
        help="protocol to speak, native /generate, OpenAI completions or chat: "
        + ", ".join(backends.BACKENDS),
    )
    add("--base-url", type=http_address, help="address of the server, instead of --host and --port")
    add("--host", default="0.0.0.0", help="default: 0.0.0.0, which means this host")
    add(
        "--port",
        type=port_number,
        help="default: the back end's usual port (sglang 30000, vllm 8000)",
    )
    add("--ready-check-timeout-sec", type=float, default=60, help="wait for the server; 0 = don't")
    add("--model", default="", help="model name, or path; default: asked from /v1/models")
    add("--served-model-name", default="", help="model name in requests, when not --model")
    add("--tokenizer", default="", help="checkpoint whose tokenizer counts; default: the server's")
    add("--header", nargs="+", metavar="KEY=VALUE", help="HTTP headers of every request")
    add("--api-key", help=f"bearer key; default: {', '.join(KEY_VARIABLES)}")
    add("--pd-separated", action="store_true", help="the server is a router over prefill + decode")
    add(
        "--connection-per-request",
        action="store_true",
        help="no keep-alive (ours; llama.cpp closes its connections after a stream)",
    )


def add_dataset_flags(parser: argparse.ArgumentParser, *, dataset: str = "sharegpt") -> None:
    """The data-set flags, shared by `bench serving` and `bench offline`."""
    _common_dataset_flags(parser.add_argument_group("data set"), dataset)
    _shared_prefix_flags(parser.add_argument_group("data set generated-shared-prefix"))


def _common_dataset_flags(group: argparse._ArgumentGroup, dataset: str) -> None:
    add = group.add_argument
    add(
        "--dataset-name",
        default=dataset,
        choices=[*datasets.DATASETS, *datasets.NOT_OFFERED],
        metavar="NAME",
        help=f"where prompts come from: {', '.join(datasets.DATASETS)}; default: {dataset}",
    )
    add("--dataset-path", default="", help="local file; nothing is downloaded")
    add("--num-prompts", type=int, default=1000, help="requests; default: 1000")
    add("--sharegpt-output-len", type=int, help="tokens to generate, instead of the recorded count")
    add("--sharegpt-context-len", type=int, help="leave out what is longer")
    add("--random-input-len", type=int, default=1024, help="longest prompt in tokens")
    add("--random-output-len", type=int, default=1024, help="longest answer in tokens")
    add(
        "--random-range-ratio",
        type=share,
        default=0.0,
        help="lengths are uniform in [max(int(L * ratio), 1), L]; 1 = always L",
    )
    add("--seed", type=int, default=42, help="of prompts, lengths and arrivals")
    add("--prompt-suffix", default="", help="text at the end of every prompt")
    add("--apply-chat-template", action="store_true", help="wrap prompts as a user's message")
    add("--tokenize-prompt", action="store_true", help="send token ids: lengths are exact")
    add("--use-trace-timestamps", action="store_true", help="send at the recorded times")


def _shared_prefix_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--gsp-num-groups", type=int, default=64, help="different system prompts")
    add("--gsp-prompts-per-group", type=int, default=16, help="requests over each")
    add("--gsp-system-prompt-len", type=int, default=2048, help="shared tokens")
    add("--gsp-question-len", type=int, default=128, help="own tokens")
    add("--gsp-output-len", type=int, default=256, help="tokens to generate")
    add("--gsp-range-ratio", type=share, default=1.0, help="spread of the three lengths")
    add("--gsp-fast-prepare", action="store_true", help="do not count the finished prompts again")
    add("--gsp-send-routing-key", action="store_true", help="header X-SMG-Routing-Key per group")
    add("--gsp-num-turns", type=int, default=1, help="questions of one conversation")
    add("--gsp-ordered", action="store_true", help="group after group, not shuffled")
    add("--gsp-group-distribution", default="uniform", choices=["uniform", "zipf"], help="sizes")
    add("--gsp-zipf-alpha", type=positive, help="skew of zipf; default: 1")


def _load_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--request-rate", type=positive, default=float("inf"), help="Poisson arrivals per second")
    add("--max-concurrency", type=int, help="most requests open at a time")
    add("--warmup-requests", type=int, default=1, help="requests before the clock starts")
    add("--flush-cache", action="store_true", help="empty the server's prefix cache after warm-up")
    add(
        "--flush-cache-timeout",
        type=positive,
        default=FLUSH_TIMEOUT,
        help="seconds to wait for the server to be idle",
    )


def _request_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--disable-stream", action="store_true", help="one answer instead of a stream: TTFT = E2E")
    add("--disable-ignore-eos", action="store_true", help="answers may end at the end token")
    add("--temperature", type=float, default=0.0)
    add("--top-p", type=float, default=1.0)
    add("--return-logprob", action="store_true", help="ask for log-probabilities")
    add("--top-logprobs-num", type=int, default=0)
    add("--token-ids-logprob", type=int, nargs="+", default=[])
    add("--logprob-start-len", type=int, default=-1)
    add("--return-routed-experts", action="store_true", help="ask for the routing (native only)")
    add("--extra-request-body", type=json_object, default={}, metavar="JSON", help="merged in")


def _report_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output-file", default="", help="JSONL file to append to")
    add("--output-details", action="store_true", help="store per-request lists too")
    add("--goodput", nargs="+", metavar="KEY:MS", type=goodput_limit, help="ttft, tpot, e2el in ms")
    add("--print-requests", action="store_true", help="show every request and its answer")
    add("--disable-tqdm", action="store_true", help="no progress line")
    add(
        "--cache-report",
        action="store_true",
        help="ask for prompt tokens taken from the prefix cache, by tier, and print them",
    )
    add("--plot-throughput", action="store_true", help="tokens and requests per second as bars")
    add("--tag", help="label stored in the record")
    add("--explain", action="store_true", help="print what each line of the result means (ours)")
    add(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE.png",
        help="draw TTFT, ITL and throughput over time (ours; needs matplotlib)",
    )


def result_file(text: str) -> str:
    """A file that can be written; whether it can is asked before a run, not after it."""
    if text and (problem := why_not_writable(Path(text))):
        raise argparse.ArgumentTypeError(problem)
    return text


def port_number(text: str) -> int:
    value = whole_number(text)
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError(f"must be between 1 and 65535, not {text}")
    return value


def share(text: str) -> float:
    value = finite_number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, not {text}")
    return value


def positive(text: str) -> float:
    value = math.inf if text in ("inf", "infinity") else finite_number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def json_object(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def goodput_limit(text: str) -> tuple[str, float]:
    """("ttft", 500.0) of "ttft:500"."""
    key, _, limit = text.partition(":")
    try:
        value = finite_number(limit)
    except ValueError:
        value = -1.0
    if key not in GOODPUT_KEYS or value < 0:
        raise argparse.ArgumentTypeError(f"must be KEY:MS with KEY of {', '.join(GOODPUT_KEYS)}")
    return key, value
