"""What is wrong with a setting."""

from __future__ import annotations

from vivace.errors import CannotStart


class ConfigError(CannotStart):
    """A setting is wrong; the text is for the user to read."""
