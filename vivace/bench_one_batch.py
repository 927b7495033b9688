"""`python -m vivace.bench_one_batch`: the same as `vivace bench one-batch`."""

from __future__ import annotations

import sys

from vivace.bench.one_batch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
