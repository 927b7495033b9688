"""What makes `vivace check` start sooner, in one place. Importing this loads nothing else.

The command takes about 150 ms, half of it imports. msgspec without typing_extensions saves 25 ms of
them; files.py does without pathlib (6 to 10 ms). `vivace bench check FILE...` shows the whole.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def prepare() -> None:
    """Before anything else is imported. The command ends before a collection could free much."""
    gc.disable()
    import_msgspec_alone()


def import_msgspec_alone() -> None:
    """msgspec takes the helpers of typing_extensions where that is installed, else those of typing,
    which since Python 3.11 do the same."""
    module = "typing_extensions"
    if module in sys.modules or "msgspec" in sys.modules:
        return
    # An entry of None makes the import fail, which msgspec expects.
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        import_module("msgspec")
    finally:
        del sys.modules[module]
