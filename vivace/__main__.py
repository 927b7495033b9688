"""`python -m vivace` is the command `vivace`."""

from __future__ import annotations

import sys

from vivace.cli import main

if __name__ == "__main__":
    sys.exit(main())
