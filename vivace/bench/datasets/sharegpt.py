"""`sharegpt`: the first two turns of recorded conversations, from a file on this host."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from vivace.bench.errors import BenchError
from vivace.bench.tokenizer import TokenCodec
from vivace.bench.workload import BenchRequest

SHORTEST = 2
"""Prompts and answers with fewer tokens are left out."""
MARGIN = 4
"""More conversations are encoded than needed, because some are left out."""


def load(args: argparse.Namespace, codec: TokenCodec) -> list[BenchRequest]:
    """Shuffled conversations; the recorded answer's length is the output length, unless given."""
    pairs = read_prompts(args.dataset_path, None, args.seed)
    queries: list[BenchRequest] = []
    step = max(args.num_prompts * MARGIN, 64)
    for start in range(0, len(pairs), step):
        part = pairs[start : start + step]
        queries += pair_requests(part, args, codec)
        if len(queries) >= args.num_prompts:
            break
    return queries[: args.num_prompts]


def pair_requests(
    pairs: list[tuple[str, str]], args: argparse.Namespace, codec: TokenCodec
) -> list[BenchRequest]:
    """Encode (prompt, answer) pairs and keep those within the limits."""
    fixed: int | None = args.sharegpt_output_len
    limit: int | None = args.sharegpt_context_len
    texts = [finished_prompt(prompt, args, codec) for prompt, _ in pairs]
    prompts = codec.encode(texts)
    answers = codec.encode([answer for _, answer in pairs])
    queries = []
    for text, ids, answer in zip(texts, prompts, answers, strict=True):
        output = len(answer) if fixed is None else fixed
        too_short = len(ids) < SHORTEST or output < SHORTEST
        too_long = limit is not None and len(ids) + output > limit
        if not too_short and not too_long:
            prompt: str | list[int] = ids if args.tokenize_prompt else text
            queries.append(BenchRequest(prompt=prompt, input_len=len(ids), output_len=output))
    return queries


def finished_prompt(prompt: str, args: argparse.Namespace, codec: TokenCodec) -> str:
    """With --prompt-suffix and --apply-chat-template, in that order."""
    text = prompt + args.prompt_suffix
    if args.apply_chat_template:
        return codec.chat([{"role": "user", "content": text}])
    return text


def read_prompts(path: str, count: int | None, seed: int) -> list[tuple[str, str]]:
    """(prompt, answer) of every conversation with two turns, shuffled by seed."""
    pairs = [pair for item in conversations(Path(path)) if (pair := first_pair(item)) is not None]
    if not pairs:
        raise BenchError(f"{path} holds no conversation with two turns")
    random.Random(seed).shuffle(pairs)
    return pairs if count is None else pairs[:count]


def conversations(path: Path) -> list[Any]:
    """The array in the file. One that breaks off gives what is whole, with a message."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        found = whole_items(text)
        if not found:
            raise BenchError(f"{path} is not a JSON array: {error}") from error
        print(f"{path} stops in the middle; {len(found)} whole entries are used", file=sys.stderr)
    if not isinstance(found, list):
        raise BenchError(f"{path} must hold a JSON array of conversations")
    return found


def whole_items(text: str) -> list[Any]:
    """Entries of a JSON array up to the first that is broken off."""
    decoder = json.JSONDecoder()
    position = text.find("[") + 1
    items: list[Any] = []
    while position > 0:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        try:
            item, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            break
        items.append(item)
    return items


def first_pair(item: Any) -> tuple[str, str] | None:
    """First two turns of {"conversations": [{"value" or "content": ...}, ...]}."""
    turns = item.get("conversations", item.get("conversation")) if isinstance(item, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    first, second = (turn_text(turn) for turn in turns[:2])
    return (first, second) if first and second else None


def turn_text(turn: Any) -> str:
    value = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
    return value if isinstance(value, str) else ""
