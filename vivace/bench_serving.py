"""`python -m vivace.bench_serving`: the same as `vivace bench serving`."""

from __future__ import annotations

import sys

from vivace.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "serving", *sys.argv[1:]]))
