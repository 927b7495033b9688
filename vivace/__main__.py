"""`python -m vivace` is the command `vivace`."""

from __future__ import annotations

import sys

try:
    from vivace.cli import main
except KeyboardInterrupt:  # Ctrl-C before `main` could see it
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
