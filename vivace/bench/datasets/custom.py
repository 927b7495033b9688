"""`custom`: one JSON object per line, with a conversation, or a prompt and what to make of it.

    {"conversations": [{"content": "question"}, {"content": "recorded answer"}]}
    {"prompt": "text or [token ids]", "output_len": 64, "timestamp": 1500}

`timestamp` (milliseconds after the start) is used with --use-trace-timestamps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from vivace.bench.datasets.sharegpt import finished_prompt, first_pair
from vivace.bench.errors import BenchError
from vivace.bench.tokenizer import TokenCodec
from vivace.bench.workload import BenchRequest

OUTPUT_LEN = 256
"""For lines that say nothing about the answer."""


def load(args: argparse.Namespace, codec: TokenCodec) -> list[BenchRequest]:
    queries = []
    for number, line in json_lines(args.dataset_path):
        query = parse_request(line, f"{args.dataset_path}:{number}", args, codec)
        limit = args.sharegpt_context_len
        if limit is None or query.input_len + query.output_len <= limit:
            queries.append(query)
        if len(queries) == args.num_prompts:
            break
    return queries


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSONL file; BenchError names the line that is not one."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BenchError(f"{path}:{number} is not JSON: {error}") from error
            if not isinstance(value, dict):
                raise BenchError(f"{path}:{number} must be a JSON object")
            yield number, value


def parse_request(
    line: dict[str, Any], where: str, args: argparse.Namespace, codec: TokenCodec
) -> BenchRequest:
    prompt, answer = prompt_and_answer(line, where)
    if isinstance(prompt, str):
        text = finished_prompt(prompt, args, codec)
        ids = codec.encode([text])[0]
        prompt = ids if args.tokenize_prompt else text
    else:
        ids = prompt
    output = args.sharegpt_output_len or line.get("output_len")
    if output is None:
        output = len(codec.encode([answer])[0]) if answer else OUTPUT_LEN
    if not isinstance(output, int) or output < 1:
        raise BenchError(f"{where}: output_len must be a positive number, not {output!r}")
    return BenchRequest(
        prompt=prompt, input_len=len(ids), output_len=output, at=parse_arrival(line, where, args)
    )


def prompt_and_answer(line: dict[str, Any], where: str) -> tuple[str | list[int], str]:
    pair = first_pair(line)
    if pair is not None:
        return pair
    prompt = line.get("prompt")
    is_ids = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
    if prompt and (isinstance(prompt, str) or is_ids):
        return prompt, str(line.get("completion") or "")
    raise BenchError(f"{where} needs `conversations` with two turns, or `prompt` (text or ids)")


def parse_arrival(line: dict[str, Any], where: str, args: argparse.Namespace) -> float | None:
    """Seconds after the start, with --use-trace-timestamps."""
    if not args.use_trace_timestamps:
        return None
    stamp = line.get("timestamp")
    if not isinstance(stamp, int | float) or stamp < 0:
        raise BenchError(f"{where} needs `timestamp` (milliseconds) for --use-trace-timestamps")
    return stamp / 1000.0
