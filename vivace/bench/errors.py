"""What ends a benchmark, and with which exit code."""

from __future__ import annotations

from collections.abc import Callable

from vivace.errors import CannotStart, exit_code
from vivace.frontend.errors import BadRequest, EngineUnavailable


class BenchError(Exception):
    """The benchmark cannot go on. The text says what is wrong, where, and what to do."""


def no_server(url: str, reason: str) -> str:
    return f"no server at {url} ({reason}); `vivace serve` starts one"


def run_benchmark(program: str, work: Callable[[], int]) -> int:
    """Its exit code: 2 when settings do not go together, 1 when a benchmark, a request or a file
    fails, each with one line on stderr."""
    failed = (BenchError, BadRequest, EngineUnavailable, OSError)
    return exit_code(program, work, cannot=(CannotStart,), failed=failed)
