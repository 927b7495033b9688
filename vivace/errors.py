"""What is wrong with what was asked, as opposed to what is wrong with Vivace."""

from __future__ import annotations


class CannotStart(ValueError):
    """Settings, a model or a machine that do not go together. The text says what is wrong, where
    and what to do; a traceback would only hide it, so none is shown."""


CANNOT_START = 2
"""exit code of a command that cannot be obeyed, as argparse has it"""
