"""Ask transformers' code, in a process of its own, whether and how it runs a model: this one loads
no torch, and nothing is loaded for a model that is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import msgspec

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import ModelSource
from vivace.config.child_process import (
    bare_environment,
    die_with,
    no_process,
    python_module,
)
from vivace.models.facts import ModelFacts
from vivace.models.transformers_facts import (
    PACKAGE,
    TraceRequest,
    TraceResult,
    facts_from,
    trace_request,
)

OLDEST = (5, 4)
"""of transformers: 4.56, 4.57 and 5.0 cannot be traced with the torch of today"""
LONGEST = 300
"""seconds for an answer; the largest models take ten"""


def facts_by_transformers(source: ModelSource) -> ModelFacts:
    """Raises SourceError with the reason when transformers' code cannot run here as it should."""
    if find_spec(PACKAGE) is None:
        raise SourceError(
            f"--model-impl transformers needs the package {PACKAGE}: pip install {PACKAGE}"
        )
    found = version(PACKAGE)
    if tuple(map(int, found.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise SourceError(
            f"--model-impl transformers needs {PACKAGE} {oldest} or later, and {found} is "
            f"installed: pip install '{PACKAGE}>={oldest}'"
        )
    request = trace_request(source)
    return facts_from(source, request, ask(request))


def ask(request: TraceRequest) -> TraceResult:
    try:
        done = subprocess.run(
            [*python_module("vivace.launch.transformers_process"), str(os.getpid())],
            input=msgspec.json.encode(request),
            capture_output=True,
            timeout=LONGEST,
            check=False,
            env={**bare_environment(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return TraceResult(refused=f"it did not answer within {LONGEST} seconds")
    except OSError as error:
        raise no_process("--model-impl transformers", error) from error
    try:
        return msgspec.json.decode(done.stdout, type=TraceResult)
    except msgspec.DecodeError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return TraceResult(refused=f"it failed with exit code {done.returncode}: {last[:300]}")


def main(parent: int) -> None:
    """That process: it reads a request from its standard input and answers on its output."""
    die_with(parent)
    import_module("vivace.models.transformers_trace").main()


if __name__ == "__main__":
    main(int(sys.argv[1]))
