"""What can be wrong with a script as a whole."""

from __future__ import annotations

from vivace.errors import CannotStart


class ScriptError(CannotStart):
    """The script cannot be followed at all; the text says why."""
