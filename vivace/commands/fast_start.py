"""What makes `vivace check` start sooner, in one place. Importing this loads nothing else.

The command takes about 100 ms, two thirds of it imports. In instructions for a deployment file
(valgrind --tool=cachegrind): 434 million with none of this, 413 without garbage collections, 379
when msgspec does without typing_extensions, 306 when patterns of libraries wait for their use.
`vivace bench check FILE...` shows the time.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def check(words: list[str]) -> int:
    """Entry of `vivace check`."""
    prepare(words)
    return import_module("vivace.commands.check").main(words)


def prepare(words: Sequence[str]) -> None:
    """Before anything else is imported, with the words of the command. It ends before a garbage
    collection could free much."""
    gc.disable()
    with patterns_compiled_on_use():
        import_msgspec_alone()
        import_module("argparse")
        if any(word.endswith((".yaml", ".yml")) for word in words):
            import_module("yaml")


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


class PatternOnUse:
    """A regular expression that is compiled when something of it is asked for."""

    def __init__(self, pattern: Any, flags: int = 0) -> None:
        self.given = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self.given), name)
        setattr(self, name, value)  # the next time nothing is looked up
        return value


@contextmanager
def patterns_compiled_on_use() -> Iterator[None]:
    """For imports of libraries. Most of their patterns are never used here, as that of all
    printable characters in PyYAML, which only its reader in Python needs."""
    compiled_now = re.compile
    re.compile = PatternOnUse  # type: ignore[assignment]
    try:
        yield
    finally:
        re.compile = compiled_now
