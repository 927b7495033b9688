"""`openai`: one chat-completions body per line, sent with its own settings."""

from __future__ import annotations

import argparse
from typing import Any

from vivace.bench.datasets.custom import OUTPUT_LEN, json_lines, parse_arrival
from vivace.bench.errors import BenchError
from vivace.bench.tokenizer import TokenCodec
from vivace.bench.workload import BenchRequest

LENGTH_FIELDS = ("max_completion_tokens", "max_tokens", "output_tokens")
OURS = {"model", "stream", "stream_options", "messages", "timestamp", *LENGTH_FIELDS}
"""Fields the benchmark sets itself."""


def load(args: argparse.Namespace, codec: TokenCodec) -> list[BenchRequest]:
    """Chat back ends get the messages and the other fields; others the rendered text."""
    chat = args.backend.endswith("-chat")
    queries = []
    for number, line in json_lines(args.dataset_path):
        where = f"{args.dataset_path}:{number}"
        messages = line.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BenchError(f"{where} needs `messages`")
        text = render(messages, codec)
        ids = codec.encode([text])[0]
        prompt = messages if chat else (ids if args.tokenize_prompt else text)
        queries.append(
            BenchRequest(
                prompt=prompt,
                input_len=len(ids),
                output_len=parse_output_len(line, where, args),
                at=parse_arrival(line, where, args),
                extra={k: v for k, v in line.items() if k not in OURS} if chat else {},
            )
        )
        if len(queries) == args.num_prompts:
            break
    return queries


def render(messages: list[dict[str, Any]], codec: TokenCodec) -> str:
    """The chat template's text, or the contents one after the other when there is no template."""
    try:
        return codec.chat(messages)
    except BenchError:
        return "\n".join(str(message.get("content") or "") for message in messages)


def parse_output_len(line: dict[str, Any], where: str, args: argparse.Namespace) -> int:
    lengths = [line[name] for name in LENGTH_FIELDS if line.get(name) is not None]
    output = args.sharegpt_output_len or (lengths[0] if lengths else OUTPUT_LEN)
    if not isinstance(output, int) or output < 1:
        raise BenchError(f"{where}: the output length must be a positive number, not {output!r}")
    return output
