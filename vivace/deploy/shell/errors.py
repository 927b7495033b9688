"""What can be wrong with a script as a whole."""

from __future__ import annotations


class ScriptError(ValueError):
    """The script cannot be followed at all; the text says why."""
