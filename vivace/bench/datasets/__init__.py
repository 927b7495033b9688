"""Data sets of the serving benchmark: a name, the module that makes it, loaded when asked for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from vivace.bench.errors import BenchError
from vivace.bench.tokenizer import TokenCodec
from vivace.bench.workload import BenchRequest
from vivace.errors import CannotStart
from vivace.files import open_input

Loader = Callable[[argparse.Namespace, TokenCodec], list[BenchRequest]]

DATASETS: dict[str, str] = {
    "random": "vivace.bench.datasets.random_tokens:load",
    "random-ids": "vivace.bench.datasets.consecutive_ids:load",
    "generated-shared-prefix": "vivace.bench.datasets.shared_prefix:load",
    "sharegpt": "vivace.bench.datasets.sharegpt:load",
    "custom": "vivace.bench.datasets.custom:load",
    "openai": "vivace.bench.datasets.openai_bodies:load",
}

NOT_OFFERED: dict[str, str] = {
    "agentic-trace": "its traces are not published with a format we can check; use custom",
    "mmmu": "Vivace serves text; images are not sent",
    "image": "Vivace serves text; images are not sent",
    "mooncake": "its traces must be downloaded; custom with `timestamp` fields replays any trace",
    "longbench_v2": "its documents must be downloaded; put them in a JSONL file and use custom",
    "speed-bench": "its data must be downloaded; put it in a JSONL file and use custom",
}


FINISHED_BY_LOADER = ("sharegpt", "custom", "openai")
"""These wrap their prompts themselves, before their length limits apply."""


NEEDS_FILE: dict[str, str] = {
    "sharegpt": "FILE (a ShareGPT JSON file on this host)",
    "custom": "FILE.jsonl",
    "openai": "FILE.jsonl",
}


def check_file(args: argparse.Namespace) -> None:
    """CannotStart when --dataset-path is missing or cannot be read."""
    name, path = args.dataset_name, args.dataset_path
    if path:
        try:
            os.close(open_input(path))
            return
        except OSError as error:
            raise CannotStart(f"cannot read --dataset-path {path}: {error.strerror}") from error
    if name in NEEDS_FILE:
        raise CannotStart(
            f"data set {name} needs --dataset-path {NEEDS_FILE[name]}; nothing is downloaded. "
            "--dataset-name random needs no file"
        )


def load(args: argparse.Namespace, codec: TokenCodec) -> list[BenchRequest]:
    """The queries of --dataset-name; `args` are the flags of `vivace.bench.flags`."""
    check_file(args)
    module, _, name = DATASETS[args.dataset_name].partition(":")
    loader: Loader = getattr(import_module(module), name)
    queries = loader(args, codec)
    if not queries:
        raise BenchError(
            f"data set {args.dataset_name} gave no request; check --dataset-path and the limits"
        )
    if args.dataset_name in FINISHED_BY_LOADER:
        return queries
    return apply_template(queries, args, codec)


def apply_template(
    queries: list[BenchRequest], args: argparse.Namespace, codec: TokenCodec
) -> list[BenchRequest]:
    """Generated prompts with --prompt-suffix and --apply-chat-template, counted again."""
    if not args.prompt_suffix and not args.apply_chat_template:
        return queries
    if any(not isinstance(query.prompt, str) for query in queries):
        raise CannotStart(
            "--prompt-suffix and --apply-chat-template need text: no --tokenize-prompt"
        )
    texts = [str(query.prompt) + args.prompt_suffix for query in queries]
    if args.apply_chat_template:
        texts = [codec.chat([{"role": "user", "content": text}]) for text in texts]
    counts = [len(ids) for ids in codec.encode(texts)]
    return [
        replace(query, prompt=text, input_len=count)
        for query, text, count in zip(queries, texts, counts, strict=True)
    ]
