"""Tokens that travel to the ranks of their experts (--moe-a2a-backend), and how many a rank may
send at once."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.config.config import Config, Options, ResolveContext
from vivace.config.drafts import draft_width
from vivace.config.errors import ConfigError
from vivace.config.parallelism import engine_rows, requested_sizes

VARIABLE = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DEFAULT_LIMIT, MOST_LIMIT = 128, 1024
"""tokens of a rank; the second is DeepEP's"""


def dispatch_limit(options: Options | Config) -> int:
    """Tokens that a rank sends at once with low latency."""
    return int(options.environment.get(VARIABLE) or DEFAULT_LIMIT)


def dispatched_rows(options: Options | Config) -> int | None:
    """Most rows of an engine's step with low latency; None: nothing limits them."""
    sizes = requested_sizes(options)
    if sizes.all_to_all and sizes.tp > 1 and options.experts.deepep_mode != "normal":
        return dispatch_limit(options) * sizes.attention_tp
    return None


def travelling_tokens(
    options: Options, context: ResolveContext
) -> Iterator[tuple[str, object, str]]:
    """A rewrite, as config/rules.py has them; before `capture_sizes`."""
    asked, sizes = options.experts, requested_sizes(options)
    if not sizes.all_to_all:
        return
    backend = f"--moe-a2a-backend {asked.moe_a2a_backend}"
    yield "ep_size", sizes.tp, f"{backend} spreads the experts over all ranks"
    if asked.deepep_mode == "normal" and sizes.tp > 1:
        yield "disable_cuda_graph", True, "--deepep-mode normal cannot be captured"


def added_in_order(options: Options) -> list[str]:
    """Raises ConfigError."""
    sizes = requested_sizes(options)
    if sizes.all_to_all and sizes.tp > 1 and options.runtime.enable_deterministic_inference:
        raise ConfigError(
            f"--moe-a2a-backend {options.experts.moe_a2a_backend}: what ranks make of a token is "
            "added in their order, not in that of --enable-deterministic-inference; give none"
        )
    return []


def dispatch(options: Options, context: ResolveContext) -> list[str]:
    """What is wrong with the limit; behind the rewrites. Raises ConfigError."""
    asked, sizes, limit = options.experts, requested_sizes(options), dispatch_limit(options)
    if not sizes.all_to_all:
        return (
            ["--deepep-mode has no effect without --moe-a2a-backend"] if mode_given(options) else []
        )
    if sizes.tp == 1:
        return [
            f"--moe-a2a-backend {asked.moe_a2a_backend} has no effect: one rank has all experts"
        ]
    if not 1 <= limit <= MOST_LIMIT:
        raise ConfigError(f"{VARIABLE}={limit}: a rank sends 1 to {MOST_LIMIT} tokens at once")
    rows, chunk = engine_rows(options), options.schedule.chunked_prefill_size
    rows = rows and rows * (1 + draft_width(options))
    most = limit * sizes.attention_tp
    if asked.deepep_mode != "low_latency" or (
        rows and chunk and chunk > 0 and rows + chunk <= most
    ):
        return []
    tokens = f"{chunk} tokens of prompts" if chunk and chunk > 0 else "whole prompts"
    raise ConfigError(
        f"--deepep-mode low_latency: a step may have {tokens} and {rows} rows of an engine, "
        f"whose {sizes.attention_tp} ranks send at most {most} at once ({VARIABLE}={limit}); give "
        "smaller --chunked-prefill-size and --max-running-requests, a larger limit, or "
        "--deepep-mode auto"
    )


def mode_given(options: Options) -> bool:
    return "deepep_mode" in options.given and options.experts.deepep_mode != "auto"
