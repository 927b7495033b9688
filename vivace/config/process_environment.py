"""What programs that are no server (clients, benchmarks) take from the environment."""

from __future__ import annotations

import os

KEY_VARIABLES = ("API_KEY", "OPENAI_API_KEY")


def process_environment() -> dict[str, str]:
    """A copy of the environment, for `vivace.config.parsing`."""
    return dict(os.environ)


def child_environment() -> dict[str, str]:
    """The environment of a server's processes: ours, and what torch reads when it is imported.

    THP_MEM_ALLOC_ENABLE lets torch ask for huge pages where the kernel gives them on request only:
    weights are read once per token, and with small pages the misses of address translation cost
    more than the reading.
    """
    return {"THP_MEM_ALLOC_ENABLE": "1", **os.environ}


def client_key() -> str | None:
    """The key a client sends: the first of API_KEY and OPENAI_API_KEY that is set and not empty."""
    return next((value for name in KEY_VARIABLES if (value := os.environ.get(name))), None)
