"""`python -m vivace.bench_offline_throughput`: the same as `vivace bench offline`."""

from __future__ import annotations

import sys

from vivace.bench.offline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
