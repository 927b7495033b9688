"""What programs that are no server (clients, benchmarks) take from the environment."""

from __future__ import annotations

import os

KEYS_OF_THE_SERVER = ("VIVACE_API_KEY", "VIVACE_ADMIN_API_KEY")
KEY_VARIABLES = ("API_KEY", "OPENAI_API_KEY")


def process_environment() -> dict[str, str]:
    """A copy of the environment, for `vivace.config.parsing`."""
    return dict(os.environ)


def client_key() -> str | None:
    """The key a client sends: the first of API_KEY and OPENAI_API_KEY that is set and not empty."""
    return next((value for name in KEY_VARIABLES if (value := os.environ.get(name))), None)
