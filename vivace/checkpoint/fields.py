"""One value of a configuration: which it may be, and the line that says what is wrong with it.

Every value a checkpoint gives passes through here, config.json's and a GGUF file's alike; what
comes out has the right type and lies in its range.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from vivace.checkpoint.errors import SourceError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CORRECT = "Correct the file"
ADVICE = "Give such a value with --json-model-override-args, or correct the file"


class FieldKind(Protocol[T_co]):
    """What a field may be. `read` raises ValueError for everything else."""

    @property
    def expected(self) -> str: ...

    def read(self, value: Any) -> T_co: ...


class Integer(msgspec.Struct, frozen=True):
    """A whole number. JSON's 8.0 is one too: some exporters write all numbers like that."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, value: Any) -> int:
        value = whole(value)
        if not self.low <= value <= self.high:
            raise ValueError
        return value


def whole(value: Any) -> int:
    """Raises ValueError for what is no whole number, of any size."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise ValueError
    return value


class Number(msgspec.Struct, frozen=True):
    """A finite number, as a float."""

    low: float
    high: float

    @property
    def expected(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, value: Any) -> float:
        if type(value) not in (int, float) or not self.low <= value <= self.high:
            raise ValueError
        return float(value)


class Column(msgspec.Struct, Generic[T], frozen=True):
    """A long list of one type, looked at in bulk."""

    entry: type[T]
    expected: str
    length: int | None = None

    def read(self, value: Any) -> list[T]:
        if not isinstance(value, list) or not set(map(type, value)) <= {self.entry}:
            raise ValueError
        if self.length is not None and len(value) != self.length:
            raise ValueError
        return value


class Flag(msgspec.Struct, frozen=True):
    expected: str = "true or false"

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value


class Text(msgspec.Struct, frozen=True):
    """`name`: something that can stand on a line."""

    most: int = 200
    name: bool = True

    @property
    def expected(self) -> str:
        return f"text of 1 to {self.most} characters"

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= self.most:
            raise ValueError
        if self.name and not value.isprintable():
            raise ValueError
        value.encode()  # halves of characters: UnicodeEncodeError is a ValueError
        return value


class OneOf(msgspec.Struct, Generic[T], frozen=True):
    """One of some names; what each means to us."""

    meanings: Mapping[str, T]

    @property
    def expected(self) -> str:
        return f"one of those that are supported: {', '.join(self.meanings)}"

    def read(self, value: Any) -> T:
        if not isinstance(value, str) or value not in self.meanings:
            raise ValueError
        return self.meanings[value]


class ListOf(msgspec.Struct, Generic[T], frozen=True):
    """A list; `alone`: one entry may stand without its list."""

    entry: FieldKind[T]
    most: int
    least: int = 0
    alone: bool = False

    @property
    def expected(self) -> str:
        count = self.most if self.most == self.least else f"{self.least} to {self.most}"
        ending = f"{self.entry.expected}, or a list of" if self.alone else "a list of"
        return f"{ending} {count} values, each {self.entry.expected}"

    def read(self, value: Any) -> tuple[T, ...]:
        if self.alone and not isinstance(value, list):
            value = [value]
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            raise ValueError
        return tuple(self.entry.read(one) for one in value)


class Object(msgspec.Struct, frozen=True):
    expected: str = "an object"

    def read(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError
        return value


class ConfigFields:
    """An object of a configuration. `place` says where a key stands, `advice` what to do about a
    bad value, both for the messages. `overridden`: keys that the command line gave."""

    def __init__(
        self,
        values: Mapping[str, Any],
        place: Callable[[str], str],
        advice: str = ADVICE,
        overridden: tuple[str, ...] = (),
    ) -> None:
        self.values = values
        self.place = place
        self.advice = advice
        self.overridden = overridden

    def has(self, key: str) -> bool:
        """Null is as good as absent, as in transformers."""
        return self.values.get(key) is not None

    def get(self, key: str, kind: FieldKind[T], default: T) -> T:
        return self.need(key, kind) if self.has(key) else default

    def need(self, key: str, kind: FieldKind[T]) -> T:
        """Raises SourceError: missing, or not what `kind` wants."""
        if not self.has(key):
            raise SourceError(
                f"{self.place(key)} is missing; it must be {kind.expected}. {self.advice}"
            )
        try:
            return kind.read(self.values[key])
        except ValueError:
            raise self.refusal(key, f"it must be {kind.expected}") from None

    def find(self, key: str, kind: FieldKind[T]) -> T | None:
        return self.need(key, kind) if self.has(key) else None

    def inner(self, key: str) -> ConfigFields | None:
        """An object within this one."""
        return self.need_inner(key) if self.has(key) else None

    def spelled(self, *keys: str) -> list[str]:
        """Those of several spellings of one thing that are given, the one that counts first: what
        the command line gave, then the order of `keys`."""
        return sorted(filter(self.has, keys), key=lambda key: key not in self.overridden)

    def need_inner(self, key: str) -> ConfigFields:
        def place(name: str) -> str:
            return f"{self.place(key)}.{readable_key(name)}"

        return ConfigFields(self.need(key, Object()), place, self.advice)

    def refusal(self, key: str, why: str) -> SourceError:
        """The error for a value that is what it may be alone, but not beside the others."""
        return self.unsupported(key, f"{why}. {self.advice}")

    def unsupported(self, key: str, why: str) -> SourceError:
        """The error for a value that another one in its place would not make right."""
        return SourceError(f"{self.place(key)} is {abbreviate(self.values.get(key))}; {why}")


def readable_key(key: str) -> str:
    return key if key.isprintable() and len(key) <= 100 else abbreviate(key)


def abbreviate(value: Any) -> str:
    """At most 100 characters of a value, on one line."""
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxstring = 2, 3, 6, 60
    try:
        text = short.repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a very long {type(value).__name__}"
    return "missing" if value is None else text[:100]
