"""What is wrong with what was asked, as opposed to what is wrong with Vivace."""

from __future__ import annotations

import os
from collections.abc import Iterable


class CannotStart(ValueError):
    """Settings, a model or a machine that do not go together. The text says what is wrong, where
    and what to do; a traceback would only hide it, so none is shown."""


CANNOT_START = 2
"""exit code of a command that cannot be obeyed, as argparse has it"""


def cause(error: Exception) -> str:
    """What to tell of it: of an OSError the file and the reason, without Python's number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean ..." with up to three names, or nothing."""
    # Loading it takes longer than all rules take, and a valid deployment never asks.
    import difflib

    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""
