"""Rules about the load: what the deployment is for, and how it is measured."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.rules.case import Case, Measured
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.spec.deployment import Lengths, longest

PAGE = "the published configurations"
BENCH = "bench_serving"
DEFAULT_PORT = 30000


def entry_ports(case: Case) -> set[int]:
    """Where requests go in: the router's port, else the mixed servers'."""
    entries = case.of("router") or case.of("mixed") or case.of("decode")
    return {entry.number("port") or DEFAULT_PORT for entry in entries}


def benchmark_port(case: Case) -> Iterator[Found]:
    ports = entry_ports(case)
    for measured in case.benchmarks:
        url = measured.value("base-url")
        port = measured.whole("port")
        if url is not None or port is None or not ports or port in ports:
            continue
        yield Found(
            role="benchmark",
            flag="--port",
            text=f"the benchmark calls port {port}, requests go in at "
            f"{', '.join(map(str, sorted(ports)))}",
            remedy=f"--port {min(ports)}",
        )


def concurrency(case: Case) -> Iterator[Found]:
    wanted = case.load.concurrency
    for server in case.of("mixed", "decode"):
        most = None if server.running is None else server.running * server.role.instances
        if wanted is not None and most is not None and wanted > most:
            yield Found(
                role=server.name,
                flag=server.flag("max_running_requests"),
                text=f"{wanted} requests at once, {most} are admitted: the rest wait, which counts "
                "as time to the first token",
                remedy=f"--max-running-requests {-(-wanted // server.role.instances)}, or a lower "
                "load",
            )


def context(case: Case) -> Iterator[Found]:
    given, answer = case.load.input, case.load.output
    if given is None or answer is None:
        return
    for server in case.servers:
        limit = server.number("context_length")
        own = case.model.context if case.model is not None and limit is None else None
        most = limit or own
        if most is not None and given + answer > most:
            yield Found(
                role=server.name,
                flag=server.flag("context_length") if limit else "--context-length",
                text=f"{given} tokens in and {answer} out are {given + answer}; "
                + (f"--context-length is {most}" if limit else f"the model's context is {most}"),
                remedy=f"--context-length {given + answer} or more",
                severity=None if limit else "warning",
            )


def context_above_model(case: Case) -> Iterator[Found]:
    if case.model is None:
        return
    for server in case.servers:
        limit = server.number("context_length")
        if (
            limit is not None
            and limit > case.model.context
            and not server.switched_on("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
        ):
            yield Found(
                role=server.name,
                flag=server.flag("context_length"),
                text=f"--context-length {limit} is above the model's {case.model.context}: refused "
                "without SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
                remedy=f"--context-length {case.model.context}, or a model with rope scaling",
            )


def prefill_budget(case: Case) -> Iterator[Found]:
    given = case.load.input or 0
    for server in case.servers:
        chunk, most = server.number("chunked_prefill_size"), server.number("max_prefill_tokens")
        whole = server.prefills and chunk is not None and chunk <= 0
        if whole and server.has("max_prefill_tokens") and most and most < given:
            yield Found(
                role=server.name,
                flag=server.flag("max_prefill_tokens"),
                text=f"--max-prefill-tokens {most} is less than one prompt of {given} and chunks "
                "are off: prompts run one at a time, by way of the fallback for a single request",
                remedy=f"--max-prefill-tokens {given} or more",
            )


def chunk_share(case: Case) -> Iterator[Found]:
    given = case.load.input
    for server in case.servers:
        chunk, layout = server.number("chunked_prefill_size"), server.layout
        if not (server.prefills and given and chunk and chunk > 0 and layout.dp_attention):
            continue
        if not server.has("chunked_prefill_size"):
            continue
        each = chunk // layout.dp
        if each < given <= chunk:
            yield Found(
                role=server.name,
                flag=server.flag("chunked_prefill_size"),
                text=f"--chunked-prefill-size {chunk} is divided by dp {layout.dp}: {each} for a "
                "rank, "
                f"so prompts of {given} are split",
                remedy=f"--chunked-prefill-size {given * layout.dp} keeps them whole",
            )


def stated_load(case: Case) -> Iterator[Found]:
    stated = case.deployment.workload
    if stated is None:
        return
    pairs = (
        ("input", longest(stated.input), ("random-input-len", "random-input")),
        ("output", longest(stated.output), ("random-output-len", "random-output")),
        ("concurrency", stated.concurrency, ("max-concurrency", "-max-concurrency")),
        ("rate", stated.rate, ("request-rate",)),
        ("requests", stated.requests, ("num-prompts", "num-prompt")),
    )
    for measured in case.benchmarks:
        for name, wanted, flags in pairs:
            found = measured.number(*flags)
            if wanted is not None and found is not None and wanted != found:
                yield Found(
                    role="benchmark",
                    flag="--" + flags[0],
                    text=f"the benchmark's {name} is {found:g}, the workload's {wanted:g}",
                    remedy="make both the same",
                )


def stated_range(case: Case) -> Iterator[Found]:
    stated = case.deployment.workload
    ranges = [] if stated is None else [("input", stated.input), ("output", stated.output)]
    for measured in case.benchmarks:
        ratio = measured.value("random-range-ratio")
        found = float(ratio) if isinstance(ratio, int | float) else 0.0
        for name, lengths in ranges:
            wanted = lengths.low / lengths.high if isinstance(lengths, Lengths) else found
            if measured.value("dataset-name") == "random" and abs(wanted - found) > 0.01:
                yield Found(
                    role="benchmark",
                    flag="--random-range-ratio",
                    text=f"the benchmark's lengths begin at {found:g} of the longest, the "
                    f"workload's {name} at {wanted:.2f}",
                    remedy=f"--random-range-ratio {wanted:.2f}",
                )


def random_lengths(case: Case) -> Iterator[Found]:
    for measured in case.benchmarks:
        ratio = measured.value("random-range-ratio")
        if measured.value("dataset-name") == "random" and ratio is None:
            yield Found(
                role="benchmark",
                flag="--random-range-ratio",
                text="--random-range-ratio is not given: its default 0 draws lengths from 1 to the "
                "one that is named, half as long on average",
                remedy="--random-range-ratio 1",
            )


def single_wave(case: Case) -> Iterator[Found]:
    for measured in case.benchmarks:
        at_once, prompts = measured_pair(measured)
        if at_once and prompts and at_once > 1 and prompts <= at_once:
            yield Found(
                role="benchmark",
                flag="--num-prompts",
                text=f"{prompts} prompts at {at_once} at once are one wave: ramp-up and tail are "
                "in "
                "the average, a steady state never comes",
                remedy=f"--num-prompts {4 * at_once}",
            )


def measured_pair(measured: Measured) -> tuple[int | None, int | None]:
    return (
        measured.whole("max-concurrency", "-max-concurrency"),
        measured.whole("num-prompts", "num-prompt"),
    )


def stated_quantisation(case: Case) -> Iterator[Found]:
    stated = (case.deployment.model.quantization or "").lower()
    if not stated:
        return
    plain = stated in ("bf16", "bfloat16", "fp16", "float16", "none")
    for server in case.servers:
        asked = server.value("quantization")
        if plain and asked is not None:
            text = f"the model is {stated}, and --quantization is {asked}"
            yield Found(
                role=server.name,
                flag=server.flag("quantization"),
                text=text,
                remedy="leave --quantization out, or name a quantised model",
            )
        if not plain and asked is None and case.platform == "npu":
            yield Found(
                role=server.name,
                flag="--quantization",
                text=f"the model is {stated}, and --quantization is not given",
                remedy="--quantization modelslim",
            )


RULES = (
    Rule(
        name="benchmark-port",
        severity="error",
        title="The benchmark calls what serves",
        explanation="Requests go to the router where there is one, else to the server.",
        source=PAGE,
        check=benchmark_port,
    ),
    Rule(
        name="context",
        severity="error",
        title="A request fits into the context",
        explanation="input + output <= --context-length; longer requests are refused.",
        source="Ascend parameter guide",
        needs=("load",),
        check=context,
    ),
    Rule(
        name="context-model",
        severity="error",
        title="The context is one the model knows",
        explanation="A longer one needs an explicit permission.",
        source="SGLang's server_args.py",
        needs=("model",),
        check=context_above_model,
    ),
    Rule(
        name="admission",
        severity="note",
        title="The load is admitted",
        explanation="Above max-running-requests, requests queue.",
        source=PAGE,
        check=concurrency,
    ),
    Rule(
        name="prefill-budget",
        severity="note",
        title="A prompt fits into one prefill",
        explanation="Without chunks, max-prefill-tokens bounds a batch of prompts; one longer "
        "prompt "
        "still runs, alone.",
        source="Ascend parameter guide",
        needs=("load",),
        check=prefill_budget,
    ),
    Rule(
        name="chunk-share",
        severity="note",
        title="Chunks are as long as they look",
        explanation="With dp attention the chunk is divided by dp.",
        source="SGLang's server_args.py",
        needs=("load",),
        check=chunk_share,
    ),
    Rule(
        name="workload",
        severity="warning",
        title="The benchmark is the workload",
        explanation="Figures of another load say little.",
        source=PAGE,
        check=stated_load,
    ),
    Rule(
        name="workload-range",
        severity="warning",
        title="The benchmark's lengths are spread as the workload's",
        explanation="low / high of workload.input and workload.output is --random-range-ratio.",
        source=BENCH,
        check=stated_range,
    ),
    Rule(
        name="range-ratio",
        severity="warning",
        title="Lengths are what they are called",
        explanation="bench_serving draws random lengths between ratio x length and length.",
        source=BENCH,
        check=random_lengths,
    ),
    Rule(
        name="single-wave",
        severity="warning",
        title="The benchmark reaches a steady state",
        explanation="Several waves of requests are needed.",
        source="implied",
        check=single_wave,
    ),
    Rule(
        name="quantisation",
        severity="warning",
        title="The weights are what they are called",
        explanation="The stated form of the weights and --quantization go together.",
        source=PAGE,
        check=stated_quantisation,
    ),
)
