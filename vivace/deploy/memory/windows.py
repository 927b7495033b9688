"""The window each role's HCCL buffer must hold, from its flags and the load."""

from __future__ import annotations

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.memory import buffers
from vivace.deploy.memory.defaults import chunk_size
from vivace.deploy.server_plan import ServerPlan

ROUND = "DEEPEP_NORMAL_LONG_SEQ_ROUND"
PER_ROUND = "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS"
ZBAL = "SGLANG_ZBAL_LOCAL_MEM_SIZE"
"""where it is set, experts exchange tokens in memory of zbal's own"""
HCCL, EXPERTS = "HCCL_BUFFSIZE", "DEEPEP_HCCL_BUFFSIZE"
"""of every communicator; of the experts' one, where it is set"""
USUAL_PREFILL = 16384
"""tokens, where --max-prefill-tokens is not given"""


class Window(msgspec.Struct, frozen=True):
    """`size` in bytes; `why` names what it is made of; `unsure`: prompts of an unknown length may
    not fill it."""

    name: str
    size: int
    why: str
    unsure: bool = False


def buffer_variable(server: ServerPlan) -> str:
    """The variable that sizes the buffers of the experts' communicator."""
    return EXPERTS if server.variable(EXPERTS) else HCCL


def prefill_tokens(server: ServerPlan, case: Case) -> int:
    """Maximum tokens that a rank sends to experts in one prefill step."""
    chunk, longest = chunk_size(server, case), case.load.input
    if chunk is not None and chunk > 0:
        limit = chunk // server.parallelism.attention_dp
    else:
        limit = max(server.number("max_prefill_tokens") or USUAL_PREFILL, longest or 0)
    if longest is not None and server.running_per_rank is not None:
        limit = min(limit, server.running_per_rank * longest)
    ranks = server.parallelism.attention_tp * server.parallelism.cp
    return -(-min([limit, *admitted(server)]) // ranks)


def admitted(server: ServerPlan) -> list[int]:
    """Limits of one prefill step of a rank besides the chunk: the tokens of its pool, and
    --max-prefill-tokens, which a first request of the context's length may exceed."""
    pool, context = server.max_total_tokens, server.number("context_length")
    budget = server.number("max_prefill_tokens") or USUAL_PREFILL
    return [*([pool] if pool else []), *([max(budget, context)] if context else [])]


def get_rounds(server: ServerPlan) -> buffers.Rounds | None:
    count, tokens = server.int_variable(ROUND), server.int_variable(PER_ROUND)
    return None if not count or not tokens else buffers.Rounds(count, tokens)


def windows(server: ServerPlan, case: Case) -> list[Window]:
    """The uses of the buffer, of which the largest counts; empty for a model without experts, with
    zbal, and for mode 2 of the fused kernel, which no published formula covers. Raises
    UnknownValue."""
    model = case.known_model
    mode, found = server.expert_mode, list[Window]()
    if model.experts is None or not mode or server.variable(ZBAL) or server.fused_mode == 2:
        return found
    if mode == "fused" and server.decodes:
        tokens = server.dispatch_limit
        size = buffers.fused_size(model, tokens)
        found.append(Window("fused", size, f"{tokens} tokens of a rank"))
    if mode in ("low_latency", "auto") and server.decodes and server.dispatch_limit:
        tokens = server.dispatch_limit
        size = buffers.low_latency(model, tokens)
        why = f"{tokens} tokens to {model.experts.count} experts"
        found.append(Window("low latency", size, why))
    tokens = prefill_tokens(server, case)
    if mode in ("normal", "auto") and server.prefills and tokens:
        rounds = get_rounds(server)
        each = min(tokens, rounds.tokens) if rounds else tokens
        size = buffers.normal(model, each, rounds.count if rounds else 1)
        why = f"{each} tokens to {model.experts.chosen} experts each"
        found.append(Window("normal", size, why, unsure=case.load.input is None))
    return found
