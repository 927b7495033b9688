"""Text -> numbers, and sizes -> text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Reader = Callable[[str], Any]


def number_reader(shape: str) -> Reader:
    """Text -> int, float or str; ValueError says what was wanted."""
    return {"int": whole_number, "float": finite_number}.get(shape, str)


def size_text(nbytes: int) -> str:
    """In the unit that leaves one to three digits before the point."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if nbytes >= size:
            count = nbytes / size
            return f"{count:,.2f} {unit}" if count < 100 else f"{count:,.0f} {unit}"
    return f"{nbytes} bytes"


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def finite_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{text!r} is not a finite number")
    return value
