"""`python -m vivace.bench_one_batch`: the same as `vivace bench one-batch`."""

from __future__ import annotations

import sys

from vivace.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "one-batch", *sys.argv[1:]]))
