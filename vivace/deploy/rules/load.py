"""Rules about the load: what the deployment is for, how it is measured, its targets, its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.from_script.undefined import REQUIRE_MODEL
from vivace.deploy.memory.plan import fraction_for, gib, plan_role
from vivace.deploy.memory.roofline import prompt_milliseconds, token_milliseconds
from vivace.deploy.memory.weights import IN_PATH
from vivace.deploy.rules.rule import ARGS, GUIDE, PAGE, Issue, case_rule, server_rule
from vivace.deploy.schema.deployment import Lengths, longest
from vivace.deploy.server_plan import DECODES, PREFILLS, ServerPlan

BENCH = "bench_serving"
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
ASCEND_FORMS = ("w8a8", "w4a8")
"""of weights that msmodelslim makes"""
METHODS = {"fp8", "awq", "gptq"}
"""of which none reads the weights of another"""
ROOFLINE = "the device's peak rates: no program is faster"
PLANNED = "computed: vivace check --memory shows the parts"
OF_VLLM = "--gpu-memory-utilization"
WEIGHTS = ("model", "device")
PROMPT = (*WEIGHTS, "load")


@case_rule("benchmark-port", "error", source=PAGE, assumes=("scripts", "program"))
def benchmark_port(case: Case) -> Iterator[Issue]:
    """The benchmark calls the port of the deployment.
    Requests go to the router if there is one, otherwise to the server."""
    ports = case.ports("router") or case.ports("mixed") or case.ports("decode")
    for benchmark in case.benchmarks:
        port = benchmark.integer("port")
        if benchmark.value("base-url") is None and port is not None and ports and port not in ports:
            listed = ", ".join(map(str, sorted(ports)))
            text = f"the benchmark calls port {port}, but the deployment serves on {listed}"
            yield Issue("--port", text, f"--port {min(ports)}", role="benchmark")


@server_rule("context", "error", source=GUIDE, needs=("load",))
def context(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Input and output together fit into --context-length.
    A request for more tokens is refused with status 400."""
    if case.load.input is None or case.load.output is None:
        return
    total = case.load.input + case.load.output
    given = server.number("context_length")
    limit = given or (case.model.context if case.model is not None and given is None else None)
    if limit is not None and total > limit:
        what = "--context-length" if given else "the model's context length"
        text = f"{case.load.input} input and {case.load.output} output tokens are {total}; "
        flag = server.flag("context_length") if given else "--context-length"
        severity = None if given else "warning"
        yield Issue(flag, f"{text}{what} is {limit}", f"--context-length {total} or more", severity)


@server_rule("context-model", "error", source=ARGS, needs=("model",))
def context_model(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--context-length does not exceed the model's context length.
    Positions beyond it were never trained. SGLang refuses them unless a variable allows it."""
    limit, most = server.number("context_length"), case.known_model.context
    if limit is not None and limit > most and not server.enabled(LONGER):
        text = f"{limit} exceeds the model's {most}: refused without {LONGER}=1"
        remedy, severity = f"--context-length {most}, or a model with rope scaling", None
        if case.later_release:
            text, severity = f"{text} (if its later release has no longer one)", "warning"
        yield Issue("context_length", text, remedy, severity)


@server_rule("admission", "note", source=PAGE, roles=DECODES)
def admission(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The servers admit the whole load.
    Requests above --max-running-requests wait in the queue, which counts toward their first
    token."""
    concurrency, limit = case.load.concurrency, server.admitted
    if concurrency is not None and limit is not None and concurrency > limit:
        text = f"{concurrency} concurrent requests, but only {limit} are admitted: others wait"
        each = -(-concurrency // (server.role.instances * server.parallelism.replicas))
        remedy = f"--max-running-requests {each}, or a lower load"
        yield Issue("max_running_requests", text, remedy)


@server_rule("prefill-budget", "note", source=GUIDE, needs=("load",))
def prefill_budget(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--max-prefill-tokens holds a whole prompt if chunked prefill is off.
    Without chunks, max-prefill-tokens limits a batch of prompts; a longer one still runs, alone."""
    prompt, limit = case.load.input or 0, server.number("max_prefill_tokens")
    chunk = server.number("chunked_prefill_size")
    unchunked = server.prefills and chunk is not None and chunk <= 0
    if unchunked and server.has("max_prefill_tokens") and limit and limit < prompt:
        text = f"{limit} is less than one prompt of {prompt} tokens: prompts run one at a time"
        yield Issue("max_prefill_tokens", text, f"--max-prefill-tokens {prompt} or more")


@server_rule("chunk-share", "note", source=ARGS, needs=("load",))
def chunk_share(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--chunked-prefill-size holds a prompt after dp attention divided it by dp.
    Each rank gets chunked-prefill-size / dp tokens; a prompt that looks whole is cut and needs
    several steps."""
    prompt, chunk = case.load.input, server.number("chunked_prefill_size")
    dp = server.parallelism.attention_dp
    if not (server.prefills and prompt and chunk and server.has("chunked_prefill_size")):
        return
    each = chunk // dp
    if each < prompt <= chunk:
        text = f"{chunk} / dp {dp} = {each} per rank: prompts of {prompt} tokens are split"
        remedy = f"--chunked-prefill-size {prompt * dp} keeps them whole"
        yield Issue("chunked_prefill_size", text, remedy)


@case_rule("workload", "warning", source=PAGE)
def workload(case: Case) -> Iterator[Issue]:
    """The benchmark measures the stated workload.
    Figures of another load say nothing about the targets of the file."""
    stated = case.deployment.workload
    if stated is None:
        return
    for benchmark in case.benchmarks:
        measured, rate = benchmark.load, benchmark.number("request-rate")
        for name, flag, expected, value in (
            ("input", "--random-input-len", longest(stated.input), measured.input),
            ("output", "--random-output-len", longest(stated.output), measured.output),
            ("concurrency", "--max-concurrency", stated.concurrency, measured.concurrency),
            ("rate", "--request-rate", stated.rate, rate),
            ("requests", "--num-prompts", stated.requests, measured.requests),
        ):
            if expected is not None and value is not None and expected != value:
                text = f"{name} is {value:g} in the benchmark and {expected:g} in the workload"
                yield Issue(flag, text, "make both the same", role="benchmark")


@case_rule("range-ratio", "warning", source=BENCH)
def range_ratio(case: Case) -> Iterator[Issue]:
    """Random benchmarks set --random-range-ratio: low / high of workload.input and workload.output.
    bench_serving has one ratio for both: lengths lie between ratio x length and length."""
    stated, flag = case.deployment.workload, "--random-range-ratio"
    ranges = [] if stated is None else [("input", stated.input), ("output", stated.output)]
    for benchmark in case.benchmarks:
        ratio = benchmark.value("random-range-ratio")
        value = float(ratio) if isinstance(ratio, int | float) else 0.0
        if benchmark.value("dataset-name") != "random":
            continue
        if ratio is None:
            text = "it is not set: the default 0 draws lengths from 1, half as long on average"
            yield Issue(flag, text, f"{flag} 1", role="benchmark")
        for name, lengths in ranges:
            expected = lengths.low / lengths.high if isinstance(lengths, Lengths) else value
            if abs(expected - value) > 0.01:
                text = f"{flag} is {value:g}, low / high of {name} is {expected:.2f}"
                yield Issue(flag, text, f"{flag} {expected:.2f}", role="benchmark")


@case_rule("single-wave", "warning", source="implied")
def single_wave(case: Case) -> Iterator[Issue]:
    """The benchmark runs several waves of requests.
    In a single wave all prompts come at once and the batch only shrinks: there is no steady
    state to measure."""
    for benchmark in case.benchmarks:
        concurrency, prompts = benchmark.load.concurrency, benchmark.load.requests
        if concurrency and prompts and concurrency > 1 and prompts <= concurrency:
            text = f"{prompts} prompts, {concurrency} at a time, are one wave: no steady state"
            yield Issue("--num-prompts", text, f"--num-prompts {4 * concurrency}", role="benchmark")


@server_rule("quantisation", "warning", source=PAGE)
def quantization(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--quantization matches model.quantization.
    Weights of a quantized model need the flag, others must not have it. SGLang refuses another
    method than the one in config.json, which the name of the model may tell."""
    stated, value = (case.deployment.model.quantization or "").lower(), server.value("quantization")
    plain = stated in ("bf16", "bfloat16", "fp16", "float16", "none")
    if plain and value is not None:
        text = f"the model is {stated}, but --quantization is {value}"
        yield Issue("quantization", text, "remove --quantization, or use a quantized model")
    named = IN_PATH.findall(str(server.value("model_path") or ""))
    method, value_method = (named or [""])[-1].lower(), str(value).partition("_")[0]
    if {method, value_method} <= METHODS and method != value_method and case.platform != "npu":
        text = f"--quantization is {value}, but by its name the model has {method} weights"
        yield Issue("quantization", text, f"remove --quantization, or --quantization {method}")
    if stated and not plain and value is None and case.platform == "npu":
        text = f"the model is {stated}, but --quantization is not set"
        yield Issue("--quantization", text, "--quantization modelslim")
    if stated in ASCEND_FORMS and case.platform == "npu" and value not in (None, "modelslim"):
        text = f"the model is {stated}, which Ascend reads as modelslim, not as {value}"
        yield Issue("quantization", text, "--quantization modelslim")


@server_rule("target-first-token", "warning", source=ROOFLINE, needs=PROMPT, roles=PREFILLS)
def target_first_token(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """targets.ttft_ms is possible.
    It is above the time of a prompt's matrix products at the peak rate of a server's devices; what
    prompts share (workload.prefix_share) is not computed again."""
    target, least = case.targets.ttft_ms, prompt_milliseconds(case, server)
    if target is not None and least > target:
        prompt = f"a prompt of {case.load.input} tokens takes {least:.1f} ms at the peak rate"
        text = f"targets.ttft_ms is {target:g}, but {prompt}"
        remedy = "more devices per server, shorter prompts, or a larger target"
        yield Issue("targets.ttft_ms", text, remedy)


@server_rule("target-token", "warning", source=ROOFLINE, needs=WEIGHTS, roles=DECODES)
def target_token(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """targets.tpot_ms is possible.
    It is above the time in which the devices of a stage read the weights that one token needs."""
    target, least = case.targets.tpot_ms, token_milliseconds(case, server)
    if target is not None and least > target:
        read = f"reading the weights of a token takes {least:.2f} ms at the peak bandwidth"
        text = f"targets.tpot_ms is {target:g}, but {read}"
        remedy = "a larger --tp-size, quantized weights, or a larger target"
        yield Issue("targets.tpot_ms", text, remedy)


@case_rule("target-rate", "warning", source="Little's law", needs=("load",))
def target_rate(case: Case) -> Iterator[Issue]:
    """The servers admit workload.rate.
    workload.rate times the output length times targets.tpot_ms is what runs concurrently."""
    rate, tpot, output = case.workload.rate, case.targets.tpot_ms, case.load.output
    if rate is None or tpot is None or output is None:
        return
    running = math.ceil(rate * output * tpot / 1000)
    servers = [server for server in case.of("mixed", "decode") if server.running is not None]
    admitted = sum(server.admitted or 0 for server in servers)
    if servers and running > admitted:
        first = servers[0]
        product = f"{rate:g} requests/s x {output} output tokens x {tpot:g} ms"
        text = f"{product} are {running} requests at a time, {admitted} are admitted"
        remedy = f"--max-running-requests for {running} in total, or more instances"
        yield Issue(first.flag("max_running_requests"), text, remedy, role=first.name)


@server_rule("shared-prompts", "warning", source="SGLang's radix cache", roles=PREFILLS)
def shared_prompts(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Shared prefixes are cached.
    Prompts with a common beginning (workload.prefix_share) are computed once."""
    share = case.workload.prefix_share
    if share > 0 and server.has("disable_radix_cache"):
        text = f"{share:.0%} of a prompt is shared, but recomputed: the prefix cache is off"
        yield Issue("disable_radix_cache", text, "remove --disable-radix-cache")


@server_rule("model-path", "warning", source="Vivace")
def model_path(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--model-path is set, and matches model.path.
    SGLang does not start without it. Every rule and the memory plan compute with the model of the
    file; the server loads the model of the flag."""
    expected, value = case.deployment.model.path, server.value("model_path")
    if value is None and (case.launches or "config" in server.role.flags):
        return
    if value is None and server.role.program in REQUIRE_MODEL and case.target.engine == "sglang":
        text = f"{server.role.program} without --model-path: it stops at once"
        yield Issue("--model-path", text, f"--model-path {expected or 'FOLDER_OR_NAME'}", "error")
    elif expected is not None and value != expected:
        text = f"--model-path is {value or 'not set'}, but model.path is {expected}"
        yield Issue("model_path", text, "make both the same, or remove model.path")


@case_rule("unread", "note", source="Vivace")
def unread(case: Case) -> Iterator[Issue]:
    """Every key of the deployment file is used.
    A key that no rule, plan or renderer can use beside the others is reported."""
    stated, model = case.workload, case.deployment.model
    measured = bool(case.deployment.benchmarks)
    rate = None if measured or case.targets.tpot_ms is not None else stated.rate
    requests, benchmark = None if measured else stated.requests, "a benchmark to compare it with"
    for key, value, remedy in (
        ("workload.rate", rate, f"add targets.tpot_ms, or {benchmark}"),
        ("workload.requests", requests, f"add {benchmark}"),
        (
            "model.draft",
            model.draft,
            "name the model with --speculative-draft-model-path: that is counted",
        ),
    ):
        if value is not None:
            yield Issue(key, f"{key} is not used", remedy)


@server_rule("weights-fit", "error", source=PLANNED, needs=WEIGHTS, assumes=("precision",))
def weights_fit(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The weights leave memory for KV.
    pool = memory x mem-fraction-static - weights. It is a warning where a command of vLLM has a
    fraction, --gpu-memory-utilization, that SGLang's own stands for here."""
    plan = plan_role(case, server)
    if plan is not None and plan.pool <= 0:
        static = f"{plan.fraction} of {gib(plan.usable)} is {gib(plan.usable * plan.fraction)}"
        if not plan.chosen:
            least = "" if plan.fraction else ", whose formula gives 0 or less here"
            static += f" (SGLang's own --mem-fraction-static{least})"
        text = f"weights take {gib(plan.total('static'))}, but {static}: nothing is left for KV"
        remedy = "a larger --tp-size or quantized weights"
        if plan.total("static") < fraction_for(plan) * plan.usable:
            remedy += ", or a larger --mem-fraction-static"
        said = not plan.chosen and any(each.flag.startswith(OF_VLLM) for each in case.remarks)
        yield Issue("mem_fraction_static", text, remedy, "warning" if said else None)


@server_rule("load-fits", "warning", source=PLANNED, needs=PROMPT, assumes=("precision",))
def load_fits(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The KV pool holds the load.
    Requests beyond it are retracted or wait. A prompt's shared beginning (workload.prefix_share) is
    kept once where there is a prefix cache. It is a note where only all outputs at full length at
    the same time exceed the pool, and on prefill servers, whose prompts wait for one another
    anyway."""
    plan = plan_role(case, server)
    if plan is None or plan.pool <= 0 or plan.needed is None or plan.needed <= plan.capacity:
        return
    each, usual = plan.tokens_each or 0, plan.usual or 0
    impossible = each > plan.capacity
    shared = f" ({plan.shared} of them shared)" if plan.shared else ""
    needed = f"{plan.running} requests of {each} tokens{shared} need {plan.needed} tokens of KV"
    fits = "not even one request fits" if impossible else f"an instance holds {plan.held} requests"
    text = f"{needed} per group, the pool holds {plan.capacity}: {fits}"
    remedy = "fewer concurrent requests, a larger --mem-fraction-static, or more devices"
    name = "mem_fraction_static"
    if plan.capacity < plan.room:
        name, remedy = "max_total_tokens", f"--max-total-tokens {min(plan.needed, plan.room)}"
    harmless = server.kind == "prefill" or usual <= plan.capacity
    yield Issue(name, text, remedy, "error" if impossible else "note" if harmless else None)


@server_rule("states-fit", "warning", source=PLANNED, needs=WEIGHTS)
def states_fit(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The states of all running requests fit beside the KV.
    Layers that keep a state (Qwen3-Next) have some for each running request, which may take
    --mamba-full-memory-ratio times the memory of KV; Vivace runs no more requests than that."""
    plan, asked = plan_role(case, server), server.running_per_rank
    if not server.ours or plan is None or not plan.state_ratio or asked is None:
        return
    if (fit := plan.state_room // max(1, plan.state_bytes)) < asked:
        text = f"{asked} running requests need {gib(asked * plan.state_bytes)} of states"
        remedy = "a larger --mamba-full-memory-ratio (less KV) or --mem-fraction-static"
        room = f"{plan.state_ratio:g} times what KV has is {gib(plan.state_room)}, for {fit}"
        text += " in each group" * (plan.groups > 1)
        lower = f"--max-running-requests {fit * plan.groups}"
        yield Issue("max_running_requests", f"{text}: {room}", f"{lower}, {remedy}")


@server_rule("total-tokens", "note", "max_total_tokens", "remove it", source=PLANNED, needs=WEIGHTS)
def total_tokens(server: ServerPlan, case: Case) -> Iterator[str]:
    """--max-total-tokens does not exceed the KV pool.
    --max-total-tokens can only make the pool smaller."""
    plan, limit = plan_role(case, server), server.max_total_tokens
    if plan is not None and limit is not None and plan.pool > 0 and limit > plan.room:
        yield f"--max-total-tokens {limit} exceeds the KV pool: {plan.room} is used"


@server_rule("outside-fits", "warning", source=PLANNED, needs=WEIGHTS)
def outside_fits(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--mem-fraction-static leaves enough memory for the rest.
    Activations, graphs, logits and communicators come out of what mem-fraction-static leaves: the
    origin of most out-of-memory reports. The sizes are estimates."""
    plan = plan_role(case, server)
    if plan is not None and plan.total("outside") > plan.outside_limit:
        outside = (part for part in plan.parts if part.kind == "outside")
        largest = max(outside, key=lambda part: part.size)
        rest = f"leaves {gib(plan.outside_limit)} for the rest, about {gib(plan.total('outside'))}"
        why = f", {largest.why}" if largest.why else ""
        text = f"{plan.fraction} {rest}, most of it {largest.name} ({gib(largest.size)}{why})"
        yield Issue("mem_fraction_static", text, f"--mem-fraction-static {fraction_for(plan)}")


@server_rule("host-pool", "error", source="SGLang's HostKVCache, 0.4.6 to 0.5.23", engine="sglang")
def host_pool(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The host cache is larger than the KV pool of the device.
    --hicache-ratio times that pool, or --hicache-size GB of each rank, which overrides it. Up to
    0.5.14 SGLang asserts it and stops; later ones say that the cache is hardly hit."""
    offloads = server.has("disaggregation_decode_enable_offload_kvcache")
    buffer_only = server.role.flags.get("hicache-host-memory-mode") == "buffer_only"
    if buffer_only or not (offloads or server.has("enable_hierarchical_cache")):
        return
    size, ratio = server.number("hicache_size"), server.value("hicache_ratio")
    plan = plan_role(case, server) if size else None
    held = plan.capacity * plan.token_bytes / 1e9 if plan is not None else 0
    name, text, remedy, severity = "hicache_ratio", "", "--hicache-ratio 2", "warning"
    if size and size < held:
        name, text = "hicache_size", f"--hicache-size {size} GB for a pool of about {held:.0f} GB"
    elif not size and isinstance(ratio, int | float) and ratio < 1:
        text = f"--hicache-ratio {ratio}: the host cache is smaller than the KV pool"
        severity = None if case.target.before("0.5.15") else "warning"
        remedy += "" if case.target.version else " (--target says whether it stops)"
    if text:
        text += "; up to 0.5.14 SGLang stops, later it finds little of what is cached"
        yield Issue(name, text, remedy, severity)
