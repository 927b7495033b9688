"""What ends a benchmark, and with which exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from vivace.errors import CANNOT_START, CannotStart
from vivace.frontend.errors import BadRequest, EngineUnavailable


class BenchError(Exception):
    """The benchmark cannot go on. The text says what is wrong, where, and what to do."""


def exit_code(work: Callable[[], int]) -> int:
    """That of `work`; 2 when settings do not go together, 1 when a benchmark or a request fails,
    with the reason on stderr. What else is raised is a fault of ours and stays a traceback."""
    try:
        return work()
    except (CannotStart, BenchError, BadRequest, EngineUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_START if isinstance(error, CannotStart) else 1
