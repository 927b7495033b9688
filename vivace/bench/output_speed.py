"""How fast an engine answers, single streams and many at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vivace.bench.errors import BenchError
from vivace.bench.offline import OfflineEngine

Prompt = list[int]
REPEATING, RANDOM = "repeating", "random"
SHORTEST_ANSWER = 2
"""tokens: the first one follows from the prompt, and no draft is verified there"""


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """`streams` of them at once, one batch after the other."""

    name: str
    streams: int
    prompts: Sequence[Prompt]


def check_context(sets: Sequence[PromptSet], context: int, output_len: int, spare: int = 0) -> None:
    """Whether prompts, answers of `output_len` and `spare` tokens behind them fit into the model's
    context. Raises BenchError."""
    longest, name = max((max(map(len, one.prompts)), one.name) for one in sets)
    room, needed = context - longest - spare, longest + spare + output_len
    if room >= output_len:
        return
    remedy = "use a model with a longer context, or a larger --context-length"
    if room >= SHORTEST_ANSWER:
        remedy = f"give --output-len {room}, or {remedy}"
    if name == RANDOM:
        remedy = f"give a smaller --random-input-len, or {remedy}"
    raise BenchError(
        f"the {name} prompts have up to {longest} tokens, so with answers of {output_len} the "
        f"context has to be {needed} tokens, and it is {context}; {remedy}"
    )


def run(
    one: PromptSet, engine: OfflineEngine, key: str, output_len: int
) -> tuple[float, list[dict[str, Any]]]:
    """(tokens per second, answers). Single streams count from their first token on, many at once as
    a whole. `key`: what is said with another one is not drafted from."""
    sampling = {"temperature": 0, "max_new_tokens": output_len, "ignore_eos": True}
    answers, seconds, tokens = list[dict[str, Any]](), 0.0, 0
    for at in range(0, len(one.prompts), one.streams):
        prompts = list(one.prompts[at : at + one.streams])
        begin = time.perf_counter()
        found = engine.generate(input_ids=prompts, sampling_params=sampling, extra_key=key)
        took = time.perf_counter() - begin
        answers += found
        if one.streams == 1:
            (meta,) = (answer["meta_info"] for answer in found)
            tokens += meta["completion_tokens"] - 1
            seconds += (meta["completion_tokens"] - 1) / meta["decode_throughput"]
        else:
            tokens += sum(answer["meta_info"]["completion_tokens"] for answer in found)
            seconds += took
    if not seconds:
        raise BenchError(f"answers of {output_len} tokens take no time; ask for more")
    return tokens / seconds, answers


def texts(answers: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def accept_length(answer: dict[str, Any]) -> float:
    """Tokens of a step that verifies."""
    return answer["meta_info"].get("spec_accept_length", 1.0)
