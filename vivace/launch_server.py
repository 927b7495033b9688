"""`python -m vivace.launch_server`: SGLang's door, with SGLang's flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vivace.supervisor.signals import stop_on_signals

PROGRAM = "python -m vivace.launch_server"


def main(argv: Sequence[str] | None = None) -> int:
    with stop_on_signals(PROGRAM):
        from vivace.commands.serve import main as launch_main  # takes long to import

        return launch_main(sys.argv[1:] if argv is None else argv, program=PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
