"""What programs that are no server (clients, benchmarks) take from the environment."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vivace.errors import CannotStart

if TYPE_CHECKING:
    from pathlib import Path

KEYS_OF_THE_SERVER = ("VIVACE_API_KEY", "VIVACE_ADMIN_API_KEY", "VIVACE_CLUSTER_KEY")
KEY_VARIABLES = ("VIVACE_API_KEY", "API_KEY", "OPENAI_API_KEY")
"""where clients look for their key, first to last"""
KEY_FORM = "a key is made of visible ASCII characters, without blanks"
GIVE_A_KEY = f"give --api-key, or set {', '.join(KEY_VARIABLES[:-1])} or {KEY_VARIABLES[-1]}"


def process_environment() -> dict[str, str]:
    """A copy of the environment, for `vivace.config.parsing`."""
    return dict(os.environ)


@contextmanager
def variable_set(name: str, value: str) -> Generator[None, None, None]:
    """What reads the environment meanwhile finds this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def is_key(text: str) -> bool:
    """Whether a header can carry it, as one word."""
    return all("!" <= character <= "~" for character in text)


def client_key(given: str | None = None) -> str | None:
    """The key a client sends: the one of --api-key, or of the first of KEY_VARIABLES that is set
    and not empty. Raises CannotStart for what is no key."""
    texts = {"--api-key": given or ""}
    texts |= {name: os.environ.get(name, "").strip() for name in KEY_VARIABLES}
    for name, text in texts.items():
        if text and not is_key(text):
            raise CannotStart(f"{name}: {KEY_FORM}")
        if text:
            return text
    return None


def state_folder() -> Path | None:
    """Where the user's programs keep what outlives them: XDG_STATE_HOME/vivace. None without a
    home."""
    from pathlib import Path

    given = os.environ.get("XDG_STATE_HOME", "")
    if given.startswith("/"):
        return Path(given) / "vivace"
    try:
        return Path.home() / ".local" / "state" / "vivace"
    except RuntimeError:
        return None
