"""`python -m vivace.launch_server`: SGLang's door, with SGLang's flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vivace.commands.serve import main as launch_main


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    return launch_main(arguments, program="python -m vivace.launch_server")


if __name__ == "__main__":
    sys.exit(main())
