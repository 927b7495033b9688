"""Streams that their seed decides: whoever computes them draws the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from running_server import RunningServer

Answers = TypeVar("Answers")
DETERMINISTIC = "--enable-deterministic-inference"
SCORED = 20
"""tokens of each answer of `log_probabilities`"""
SCORED_SEEDS = range(5)
FLAGS = ("--skip-tokenizer-init", "--random-seed", "1", "--max-running-requests", "8")
SEEDS = range(8)
TOKENS = 120


def body(
    seed: int, count: int = TOKENS, prompt: Sequence[int] | None = None, **more: Any
) -> dict[str, Any]:
    """Greedy where the seed is odd."""
    sampling = {"max_new_tokens": count, "ignore_eos": True, "sampling_seed": seed}
    sampling |= {"temperature": 0.0} if seed % 2 else {"temperature": 0.8, "top_k": 20}
    ids = [5 + seed, 6, 7, 8] if prompt is None else list(prompt)
    return {"input_ids": ids, "sampling_params": sampling, **more}


def last_event(server: RunningServer, asked: dict[str, Any]) -> dict[str, Any]:
    """Of a stream: it has all tokens."""
    event: dict[str, Any] = {}
    for event in server.stream("/generate", asked):
        assert "error" not in event, event
    return event


def stream_tokens(server: RunningServer, seed: int, count: int = TOKENS, **more: Any) -> list[int]:
    return last_event(server, body(seed, count, **more))["output_ids"]


def all_streams(
    server: RunningServer,
    seeds: Sequence[int] = SEEDS,
    during: Callable[[], object] = lambda: None,
) -> dict[int, list[int]]:
    """At the same time; `during`: what happens meanwhile"""
    with ThreadPoolExecutor(len(seeds)) as pool:
        answers = [pool.submit(stream_tokens, server, seed) for seed in seeds]
        during()
        return {seed: answer.result(200) for seed, answer in zip(seeds, answers, strict=True)}


def scored_prompt(seed: int) -> list[int]:
    return [5 + seed + i % 40 for i in range(3 + 11 * seed)]


def log_probabilities(server: RunningServer) -> list[Any]:
    """Of prompts and answers, and the best two of each, of SCORED_SEEDS at the same time."""
    keys = ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs")
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}

    def ask(seed: int) -> list[Any]:
        scored = body(seed, SCORED, scored_prompt(seed), **asked)
        found = server.json("/generate", scored)["meta_info"]
        return [found[key] for key in keys]

    with ThreadPoolExecutor(len(SCORED_SEEDS)) as pool:
        return list(pool.map(ask, SCORED_SEEDS))


def ask_server(
    folder: Path, log: Path, ask: Callable[[RunningServer], Answers], *flags: str
) -> Answers:
    """What one of its own says to `ask`."""
    with RunningServer("--model-path", str(folder), *FLAGS, *flags, log=log) as server:
        return ask(server.wait_ready())
