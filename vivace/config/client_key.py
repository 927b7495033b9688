"""The key a client of a server sends, from the environment."""

from __future__ import annotations

import os

VARIABLES = ("API_KEY", "OPENAI_API_KEY")


def client_key() -> str | None:
    """The first of API_KEY and OPENAI_API_KEY that is set and not empty."""
    return next((value for name in VARIABLES if (value := os.environ.get(name))), None)
