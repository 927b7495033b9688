"""Which models can be divided among how many devices, and how many engines there may be."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.checkpoint.layouts import InputGroups
from vivace.checkpoint.source import ModelSource
from vivace.config.config import ModelContext, Options, ResolveContext, Slices
from vivace.config.errors import ConfigError
from vivace.config.kernels import INT8
from vivace.config.parallelism import Parallelism, dp_divides_tp, requested_sizes
from vivace.models.facts import ModelFacts, undivided_inputs
from vivace.platforms.blocks import count_segments
from vivace.protocol.ranks import MOST_RANKS

MOVING_SUMS = (
    "--enable-deterministic-inference: by torch's operations log-probabilities are equal however "
    "requests are batched, but not on another number of devices"
)


def one_device(options: Options) -> list[str]:
    """What transformers' classes compute is not divided."""
    sizes = requested_sizes(options)
    ranks = {"--tensor-parallel-size": sizes.tp, "--pipeline-parallel-size": sizes.pp}
    for flag, size in ranks.items():
        if size > 1 and options.model.model_impl == "transformers":
            raise ConfigError(f"{flag} {size}: --model-impl transformers runs on one device")
    return []


def replicas(options: Options) -> list[str]:
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


def one_engine(asked: Slices, what: str) -> None:
    """For what has one engine and reaches no other machine; before anything says what several
    machines need. Raises ConfigError."""
    parallel = asked.parallel
    sizes = {"--data-parallel-size": parallel.dp_size, "--nnodes": parallel.nnodes}
    for flag, size in sizes.items():
        if size > 1:
            raise ConfigError(
                f"{flag} {size}: {what} is one engine on one machine; leave it out, or run a server"
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
    sizes, notices = requested_sizes(options), list[str]()
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
    if sizes.node_devices > max(1, platform.cores):
        factors = {
            "--data-parallel-size": sizes.replicas,
            "--tensor-parallel-size": sizes.tp,
            "--pipeline-parallel-size": sizes.pp,
        }
        shown = " times ".join(flag for flag, size in factors.items() if size > 1)
        notices.append(
            f"{sizes.node_devices} workers ({shown}) share {platform.cores} cores: they take "
            "turns, so give fewer"
        )
    return notices


def tensor_parallel(options: Options, context: ModelContext) -> list[str]:
    sizes, facts = requested_sizes(options), context.facts
    ranks = sizes.tp
    if sizes.dp_attention and (fault := dp_divides_tp(sizes)):
        raise ConfigError(f"--enable-dp-attention: {fault}")
    dp, asked = sizes.attention_dp, options.runtime.enable_deterministic_inference
    fixed = asked and not options.runtime.disable_cpu_kernels
    notices = [MOVING_SUMS] if asked and not fixed else []
    if ranks == 1:
        return notices
    division = Division(options, facts, input_groups(options, context.source), fixed=fixed)
    possible = [size for size in range(dp, 1 + MOST_RANKS, dp) if division.divides(size)]
    if ranks not in possible:
        groups = {"--expert-parallel-size": options.experts.ep_size, "--data-parallel-size": dp}
        given = " and ".join(f"{flag} {size}" for flag, size in groups.items() if size > 1)
        found = f"{', '.join(map(str, possible))} devices only"
        if possible == [1]:
            found = "one device only (leave the flag out)"
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: {facts.heads} heads, {facts.kv_heads} of keys, "
            + (f"{count} of keys in recurrent layers, " if (count := key_heads(facts)) else "")
            + "and "
            f"{join_sizes(facts.mlp_widths)} numbers inside of an MLP are divided among "
            + (found if possible else f"no number of them with {given}, so give another")
            + division.why_experts_are_few(ranks)
            + (", with sums in one order (--enable-deterministic-inference)" if fixed else "")
        )
    if reason := division.why_groups_are_cut(ranks):
        whole = [size for size in possible if not division.why_groups_are_cut(size)]
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: {reason}; possible are "
            f"{', '.join(map(str, whole)) or 'none'}"
        )
    return notices


def key_heads(facts: ModelFacts) -> int:
    """Of recurrent layers; 0: there are none."""
    recurrent = facts.decoder.recurrent if facts.decoder is not None else None
    return 0 if recurrent is None else recurrent.shape.key_heads


def input_groups(slices: Slices, source: ModelSource) -> InputGroups:
    decoded = slices.runtime.disable_cpu_kernels or slices.quantization.quantization in INT8
    return undivided_inputs(source, decoded=decoded)


@dataclass(frozen=True)
class DividedWidth:
    """Numbers inside of an MLP or an expert, the ranks that divide them, and how many share a
    scale. `uneven`: in whole groups, of which some ranks have one more."""

    size: int
    ranks: int
    group: int
    uneven: bool = False

    def divides(self) -> bool:
        """Matrices have an even number of inputs, whole or divided."""
        if self.uneven:
            return -(-self.size // self.group) >= self.ranks
        return self.size % (2 * self.ranks) == 0

    def cuts_groups(self) -> bool:
        return not self.uneven and self.size // self.ranks % self.group > 0


@dataclass(frozen=True)
class Division:
    """What a model's layers allow. `fixed`: whole segments of what is added in one order for each
    rank (layers/sums.py)."""

    options: Options
    facts: ModelFacts
    groups: InputGroups
    fixed: bool

    def divides(self, ranks: int) -> bool:
        """Heads of keys may be repeated."""
        facts, sizes = self.facts, requested_sizes(self.options)
        heads_ranks, kv = self._heads_ranks(ranks), facts.kv_heads
        return not (
            facts.heads % heads_ranks
            or key_heads(facts) % heads_ranks
            or (ranks % self.options.experts.ep_size and not sizes.all_to_all)
            or not all(width.divides() for width in self._widths(ranks))
            or (kv % heads_ranks and heads_ranks % kv)
            or facts.vocabulary < heads_ranks
            or (self.fixed and not self._divides_segments(ranks))
        )

    def why_groups_are_cut(self, ranks: int) -> str:
        """Inputs of AWQ's and GPTQ's groups and of blocks share a scale, so a group stays on one
        device."""
        heads = DividedWidth(self.facts.attended_width, self._heads_ranks(ranks), self.groups.heads)
        named = [("numbers inside of an MLP", width) for width in self._widths(ranks)]
        for what, width in (*named, ("numbers of all heads", heads)):
            if width.cuts_groups():
                return (
                    f"{width.size} {what} cannot be divided: the checkpoint's groups of "
                    f"{width.group} would be cut"
                )
        return ""

    def why_experts_are_few(self, ranks: int) -> str:
        """Where it is their blocks that are not enough for ranks; otherwise nothing."""
        for width in self._widths(ranks):
            if width.uneven and not width.divides():
                blocks = f"{-(-width.size // width.group)} blocks of {width.group}"
                return (
                    f": the {width.size} of an expert are {blocks}, which stay whole "
                    "(--expert-parallel-size divides experts by their number)"
                )
        return ""

    def _heads_ranks(self, ranks: int) -> int:
        """Those that share heads and vocabulary."""
        return ranks // requested_sizes(self.options).attention_dp

    def _divides_segments(self, ranks: int) -> bool:
        return count_segments(self.facts.heads) % self._heads_ranks(ranks) == 0 and all(
            count_segments(width.size) % width.ranks == 0 for width in self._widths(ranks)
        )

    def _widths(self, ranks: int) -> list[DividedWidth]:
        """Of every kind of layer"""
        facts, groups, asked = self.facts, self.groups, self.options.experts
        experts = facts.decoder and facts.decoder.experts
        if experts is None:
            return [DividedWidth(width, ranks, groups.mlp) for width in facts.mlp_widths]
        travels = requested_sizes(self.options).all_to_all  # every rank has whole experts then
        inside = 1 if travels else max(1, ranks // asked.ep_size)
        uneven = groups.experts > 1 and not self.fixed
        found = [DividedWidth(experts.width, inside, groups.experts, uneven)]
        if not all(experts.layers):
            shares = asked.moe_dense_tp_size or ranks
            found.append(DividedWidth(facts.intermediate_size, shares, groups.mlp))
        if experts.shared_width:
            shares = 1 if travels else ranks
            found.append(DividedWidth(experts.shared_width, shares, groups.shared))
        return found


def join_sizes(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))
