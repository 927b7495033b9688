"""Which models can be divided among how many devices."""

from __future__ import annotations

from vivace.config.config import Options, ResolveContext
from vivace.config.errors import ConfigError
from vivace.models.facts import ModelFacts

MOST_RANKS = 64
"""of one machine"""


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
