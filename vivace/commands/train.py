"""`vivace train`: what drafts for a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vivace.commands import help_text, unknown_word
from vivace.errors import CANNOT_START, CannotStart, exit_code

KINDS = {"draft": "an EAGLE3 head that drafts for a model, from the model's own answers"}
ENGINE_FLAGS = ("--disable-radix-cache",)
"""every token is computed, so that its hidden states are there"""


def main(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(help_text("vivace train", "KIND", KINDS))
        return 0 if words else CANNOT_START
    if words[0] not in KINDS:
        return unknown_word("vivace train", "kind", words[0], KINDS)
    return exit_code("vivace train draft", lambda: train_draft(words[1:]))


def train_draft(words: Sequence[str]) -> int:
    from vivace.train.flags import parse

    asked, others = parse(words, "vivace train draft")
    return run(asked, others)


def run(asked: argparse.Namespace, others: Sequence[str]) -> int:
    from vivace.config.parsing import parse
    from vivace.config.process_environment import process_environment
    from vivace.config.tensor_parallel import one_engine
    from vivace.launch.configure import configure

    options = parse(
        [*others, *ENGINE_FLAGS, "--max-running-requests", str(asked.rows)],
        process_environment(),
        program="vivace train draft",
    )
    one_engine(options, "training")
    if options.model.model_impl == "transformers":  # else it asks for the package first
        raise CannotStart(
            "--model-impl transformers: heads do not draft for its classes; leave it out"
        )
    config = configure(options)
    from vivace.train.draft import train_draft

    return train_draft(config, asked)
