"""Which models can be divided among how many devices, and how many engines there may be."""

from __future__ import annotations

from vivace.config.config import Config, ModelContext, Options, ResolveContext
from vivace.config.errors import ConfigError
from vivace.config.parallelism import Parallelism, dp_divides_tp, requested_sizes
from vivace.models.facts import ModelFacts, undivided_inputs
from vivace.platforms.blocks import count_segments
from vivace.protocol.ranks import MOST_RANKS


def replicas(options: Options, context: ResolveContext) -> list[str]:
    parallel = options.parallel
    sizes = requested_sizes(options)
    if sizes.devices > MOST_RANKS:
        shown = f"--tensor-parallel-size {parallel.tp_size}"
        if sizes.pp > 1:
            shown = f"--pipeline-parallel-size {sizes.pp} times {shown}"
        if sizes.replicas > 1:
            shown = f"--data-parallel-size {parallel.dp_size} times {shown}"
        raise ConfigError(f"{shown}: a server has at most {MOST_RANKS} workers")
    return [
        *running_requests(options, sizes),
        *(
            f"{flag} has no effect: there is one engine (--data-parallel-size)"
            for flag in ("--load-balance-method", "--enable-dp-attention")
            if parallel.dp_size == 1 and flag[2:].replace("-", "_") in options.given
        ),
    ]


def one_process(config: Config, what: str) -> None:
    """For what starts no other process and reaches no other machine. Raises ConfigError."""
    parallel = config.parallel
    sizes = {
        "--data-parallel-size": parallel.dp_size,
        "--tensor-parallel-size": parallel.tp_size,
        "--pipeline-parallel-size": parallel.pp_size,
        "--nnodes": parallel.nnodes,
    }
    for flag, size in sizes.items():
        if size > 1:
            raise ConfigError(
                f"{flag} {size}: {what} computes in one process; leave it out, or run a server"
            )


def running_requests(options: Options, sizes: Parallelism) -> list[str]:
    """As SGLang counts them: engines divide the limit with dp attention."""
    limit, dp = options.schedule.max_running_requests, sizes.attention_dp
    if not limit or not limit % dp:
        return []
    each = sizes.running_requests(limit)
    what = f"--max-running-requests {limit}: the {dp} engines of --enable-dp-attention divide it"
    if not each:
        raise ConfigError(f"{what}; give at least {dp}")
    return [f"{what}, and each runs {each}: {each * dp} together"]


def crowded(options: Options, context: ResolveContext) -> list[str]:
    """Workers that compute on the same cores, and ranks that wait for each other there; of this
    node."""
    parallel, platform = options.parallel, context.platform
    workers, notices = requested_sizes(options).node_devices, list[str]()
    if not platform.on_cores:
        return notices
    if parallel.pp_size > 1 and parallel.nnodes == 1:
        notices.append(
            f"--pipeline-parallel-size {parallel.pp_size}: a token passes all stages, each with "
            "its part of the cores, so a single stream is slower than in one process with all "
            "threads; without the flag all cores are used too"
        )
    if parallel.tp_size > 1 and parallel.nnodes == 1:
        notices.append(
            f"--tensor-parallel-size {parallel.tp_size}: ranks on the cores of one machine "
            "exchange every layer's results, so they answer somewhat more slowly than one process "
            "with all threads; without the flag all cores are used too"
        )
    if workers > max(1, platform.cores):
        factors = ["--data-parallel-size", "--tensor-parallel-size"]
        factors += ["--pipeline-parallel-size"] if parallel.pp_size > 1 else []
        notices.append(
            f"{workers} workers ({' times '.join(factors)}) share "
            f"{platform.cores} cores: they take turns, so give fewer"
        )
    return notices


def tensor_parallel(options: Options, context: ModelContext) -> list[str]:
    sizes, facts = requested_sizes(options), context.facts
    ranks = sizes.tp
    if sizes.dp_attention and (fault := dp_divides_tp(sizes)):
        raise ConfigError(f"--enable-dp-attention: {fault}")
    if ranks == 1:
        return []
    if options.model.model_impl == "transformers":
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: --model-impl transformers runs on one device"
        )
    dp = sizes.attention_dp
    numbers = range(dp, 1 + MOST_RANKS, dp)
    fixed = options.runtime.enable_deterministic_inference
    fixed = fixed and not options.runtime.disable_cpu_kernels
    possible = [
        size
        for size in numbers
        if divides(options, facts, size, size // dp)
        and (not fixed or divides_segments(options, facts, size, size // dp))
    ]
    if ranks not in possible:
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: {facts.heads} heads, {facts.kv_heads} of keys, and "
            f"{join_sizes(facts.mlp_widths)} numbers inside of an MLP are divided among "
            + (f"{', '.join(map(str, possible))} devices only" if possible else "no number of them")
            + (", with sums in one order (--enable-deterministic-inference)" if fixed else "")
        )
    group = undivided_inputs(context.source)
    if reason := why_groups_are_cut(options, facts, group, ranks, ranks // dp):
        whole = [
            size
            for size in possible
            if not why_groups_are_cut(options, facts, group, size, size // dp)
        ]
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: {reason}; possible are "
            f"{', '.join(map(str, whole)) or 'none'}"
        )
    if options.runtime.enable_deterministic_inference and not fixed:
        return [
            "--enable-deterministic-inference: by torch's operations log-probabilities are equal "
            "however requests are batched, but not on another number of devices"
        ]
    return []


def divides_segments(options: Options, facts: ModelFacts, ranks: int, heads_ranks: int) -> bool:
    """Whether each rank has whole segments of what is added in one order (layers/sums.py)."""
    return count_segments(facts.heads) % heads_ranks == 0 and all(
        count_segments(width) % shares == 0
        for width, shares in divided_widths(options, facts, ranks)
    )


def why_groups_are_cut(
    options: Options, facts: ModelFacts, group: int, ranks: int, heads_ranks: int
) -> str:
    """Inputs of AWQ's and GPTQ's groups and of MXFP4's blocks share a scale, so a group stays on
    one device."""
    divided = [
        *(("numbers inside of an MLP", *width) for width in divided_widths(options, facts, ranks)),
        ("numbers of all heads", facts.attended_width, heads_ranks),
    ]
    for what, size, count in divided:
        if size // count % group:
            return (
                f"{size} {what} cannot be divided: the checkpoint's groups of {group} would be cut"
            )
    return ""


def divided_widths(options: Options, facts: ModelFacts, ranks: int) -> list[tuple[int, int]]:
    """(numbers inside of an MLP or an expert, ranks that divide them), of every kind of layer."""
    experts, asked = facts.decoder and facts.decoder.experts, options.experts
    if experts is None:
        return [(width, ranks) for width in facts.mlp_widths]
    travels = requested_sizes(options).all_to_all  # every rank has whole experts then
    dense = () if all(experts.layers) else (facts.intermediate_size,)
    shared = (experts.shared_width,) if experts.shared_width else ()
    return [
        *((width, asked.moe_dense_tp_size or ranks) for width in dense),
        (experts.width, 1 if travels else max(1, ranks // asked.ep_size)),
        *((width, 1 if travels else ranks) for width in shared),
    ]


def divides(options: Options, facts: ModelFacts, ranks: int, heads_ranks: int) -> bool:
    """`heads_ranks`: those that share heads and vocabulary. Heads of keys may be repeated.
    Matrices have an even number of inputs, whole or divided."""
    kv = facts.kv_heads
    return not (
        facts.heads % heads_ranks
        or (ranks % options.experts.ep_size and not requested_sizes(options).all_to_all)
        or any(width % (2 * shares) for width, shares in divided_widths(options, facts, ranks))
        or (kv % heads_ranks and heads_ranks % kv)
        or facts.vocabulary < heads_ranks
    )


def join_sizes(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))
