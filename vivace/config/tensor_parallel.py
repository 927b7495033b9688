"""Which models can be divided among how many devices, and how many engines there may be."""

from __future__ import annotations

from vivace.config.config import Options, ResolveContext
from vivace.config.errors import ConfigError
from vivace.models.facts import ModelFacts

MOST_RANKS = 64
"""of one machine"""


def replicas(options: Options, context: ResolveContext) -> list[str]:
    parallel = options.parallel
    if parallel.dp_size > 1 and parallel.enable_dp_attention:
        raise ConfigError(
            "--enable-dp-attention is not supported yet: give --data-parallel-size alone, for "
            "engines that share nothing"
        )
    if parallel.dp_size * parallel.tp_size > MOST_RANKS:
        raise ConfigError(
            f"--data-parallel-size {parallel.dp_size} times --tensor-parallel-size "
            f"{parallel.tp_size}: a machine has at most {MOST_RANKS} workers"
        )
    return []


def tensor_parallel(options: Options, context: ResolveContext) -> list[str]:
    ranks, facts = options.parallel.tp_size, context.facts
    if ranks == 1:
        return []
    if options.model.model_impl == "transformers":
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: --model-impl transformers runs on one device"
        )
    possible = [size for size in range(1, 1 + min(facts.heads, MOST_RANKS)) if divides(facts, size)]
    if ranks not in possible:
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: {facts.heads} heads, {facts.kv_heads} of keys, and "
            f"{facts.intermediate_size} numbers inside of an MLP are divided among "
            f"{', '.join(map(str, possible))} devices only"
        )
    return []


def divides(facts: ModelFacts, ranks: int) -> bool:
    """Heads of keys may be repeated."""
    kv = facts.kv_heads
    return not (
        facts.heads % ranks
        or facts.intermediate_size % ranks
        or (kv % ranks and ranks % kv)
        or facts.vocabulary < ranks
    )
