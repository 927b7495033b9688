"""What the processes that we start are told: their command and their environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vivace.config.process_environment import KEYS_OF_THE_SERVER

SOURCES = Path(__file__).resolve().parents[2]


def child_environment() -> dict[str, str]:
    """The environment of a server's processes: ours, and what torch reads when it is imported.

    THP_MEM_ALLOC_ENABLE lets torch ask for huge pages where the kernel gives them on request only:
    weights are read once per token, and with small pages the misses of address translation cost
    more than the reading. Keys reach those who compare them with the rest of the configuration.
    """
    kept = {name: value for name, value in os.environ.items() if name not in KEYS_OF_THE_SERVER}
    return {"THP_MEM_ALLOC_ENABLE": "1", **kept}


def bare_environment() -> dict[str, str]:
    """What a process needs that is to know nothing: where Python's modules are, and the time."""
    kept = (
        "PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "LD_LIBRARY_PATH",
        "TZ",
        "LANG",
        "LC_ALL",
        "LC_TIME",
    )
    return {name: os.environ[name] for name in kept if name in os.environ}


def python_module(module: str) -> list[str]:
    """The command that runs a module of ours with this interpreter.

    -P keeps modules that happen to lie in the working directory out; only when the package itself
    is found that way it has to go.
    """
    path = [] if Path.cwd() == SOURCES else ["-P"]
    return [sys.executable, *path, "-m", module]
