"""The flags of `vivace train draft`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vivace.arguments import ArgumentParser, finite_number, named_path, number_between
from vivace.bench.flags import refuse_misspelled
from vivace.train.prompts import GENERATED, GIVEN

MOST_ROWS = 1 << 16
"""of --max-running-requests"""

EPILOG = """All other flags are those of `vivace serve`. Without --prompts and --text the head
learns from the model's answers to prompts that the package brings.

  vivace train draft --output HEAD
  vivace serve --speculative-algorithm EAGLE3 --speculative-draft-model-path HEAD

Ctrl-C saves what is there; the same command goes on with it."""


def positive_number(text: str) -> float:
    value = finite_number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def add_flags(parser: ArgumentParser) -> None:
    add, positive = parser.add_argument, number_between(1, 1 << 40)
    add("--output", type=named_path, required=True, metavar="DIR", help="the head's, which is made")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompts",
        type=named_path,
        metavar="FILE",
        help="a prompt in each line, or *.jsonl with a `prompt` or `messages` in each",
    )
    source.add_argument(
        "--text", type=named_path, metavar="FILE", help="learn from this text as it is"
    )
    add(
        "--answers",
        choices=(GENERATED, GIVEN),
        default=GENERATED,
        help="to prompts: the model's own, or those in the file (default: %(default)s)",
    )
    add("--tokens", type=positive, default=320_000, help="to learn from at most (%(default)s)")
    add(
        "--sequence-length",
        type=number_between(16, 1 << 20),
        default=256,
        help="(default: %(default)s)",
    )
    add(
        "--draft-vocab-size",
        type=positive,
        help="tokens that the head may say (8 for each number of a hidden state)",
    )
    add(
        "--steps",
        type=number_between(1, 16),
        default=3,
        help="drafts it learns to make (%(default)s)",
    )
    add("--epochs", type=positive, default=6, help="at most (default: %(default)s)")
    add("--max-minutes", type=positive_number, help="of everything together; default: no limit")
    add("--learning-rate", type=positive_number, default=1e-3, help="(default: %(default)s)")
    add("--batch", type=positive, default=4, help="sequences of a step (default: %(default)s)")
    add(
        "--rows",
        type=number_between(1, MOST_ROWS),
        default=64,
        help="answers computed at once (%(default)s)",
    )
    add("--seed", type=number_between(0, (1 << 63) - 1), default=0, help="(default: %(default)s)")
    add("--keep-states", action="store_true", help="do not delete what was collected")


def parse(words: Sequence[str], program: str) -> tuple[argparse.Namespace, list[str]]:
    """(ours, those of the server)"""
    parser = ArgumentParser(
        program,
        usage="%(prog)s --output DIR [FLAGS]",
        description="Train an EAGLE3 head that drafts for a model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser)
    asked, others = parser.parse_known_args(list(words))
    refuse_misspelled(parser, others)
    return asked, others
