"""`vivace save-sharded-state`: a checkpoint as files of single ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vivace.arguments import ArgumentParser
from vivace.errors import CannotStart, exit_code
from vivace.terminal import print_wrapped

PROGRAM = "vivace save-sharded-state"
EPILOG = """All other flags are those of `vivace serve`; those that divide a model among
devices (--tp-size, --ep-size, --pp-size, --enable-dp-attention ...) must be the
same when it is served:

  vivace save-sharded-state --model-path deepseek-ai/DeepSeek-R1 \\
    --output /models/r1-tp16 --tp-size 16 --ep-size 16
  vivace serve --model-path /models/r1-tp16 --load-format sharded_state \\
    --tp-size 16 --ep-size 16
"""


def main(words: Sequence[str]) -> int:
    return exit_code(PROGRAM, lambda: run(words), cannot=(CannotStart,))


def run(words: Sequence[str]) -> int:
    from vivace.checkpoint.weight_files import PATTERN
    from vivace.config.parsing import parse
    from vivace.config.process_environment import process_environment
    from vivace.launch.configure import configure

    parser = ArgumentParser(
        PROGRAM,
        description="Write a checkpoint as files of single ranks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--output", type=Path, required=True, help="the folder, which is made")
    parser.add_argument("--file-pattern", default=PATTERN, help="names of files (%(default)s)")
    parser.add_argument("--max-file-size", type=int, help="bytes of a file; default: 5 GiB")
    chosen, others = parser.parse_known_args(words)
    if chosen.max_file_size is not None and chosen.max_file_size < 1:
        parser.error("--max-file-size must be at least 1")
    config = configure(parse(others, process_environment(), program=PROGRAM))
    from vivace.offline.sharded_state import save_sharded_state

    save_sharded_state(
        config,
        chosen.output,
        pattern=chosen.file_pattern,
        max_size=chosen.max_file_size,
        report=lambda stage, fraction: None,
    )
    print_wrapped(
        f"Serve it with --load-format sharded_state --model-path {chosen.output}, and with the "
        "other flags of this command, which say how many ranks there are"
    )
    return 0
