"""What is wrong with a model's files."""

from __future__ import annotations

from vivace.errors import CannotStart


class SourceError(CannotStart):
    """The model cannot be found or read; the text says what, where and what to do."""
