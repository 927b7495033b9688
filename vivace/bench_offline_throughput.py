"""`python -m vivace.bench_offline_throughput`: the same as `vivace bench offline`."""

from __future__ import annotations

import sys

from vivace.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "offline", *sys.argv[1:]]))
