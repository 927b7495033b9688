"""From text, YAML or Python values to the values of options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from vivace.arguments import finite_number, whole_number
from vivace.config.errors import ConfigError
from vivace.config.plugins import installed
from vivace.config.secret import Secret
from vivace.errors import nearest

Reader = Callable[[str], Any]
SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class OptionValues(Protocol):
    """What an option says about its values."""

    @property
    def flag(self) -> str: ...
    @property
    def shape(self) -> str: ...
    @property
    def choices(self) -> tuple[str, ...]: ...
    @property
    def offered(self) -> tuple[str, ...]:
        """The choices that errors name."""
        ...

    @property
    def plugins(self) -> str:
        """The group of entry points whose names are choices, too."""
        ...

    @property
    def secret(self) -> bool: ...


def json_value(text: str) -> Any:
    import json

    return json.loads(text)


def parse_value(option: OptionValues, value: Any) -> Any:
    """A value in the option's type and among its choices; ConfigError names the flag."""
    try:
        result = convert(option, value)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{option.flag}: {error}") from None
    if option.choices and str(result) not in option.choices:
        added = installed(option.plugins)
        if str(result) not in added:
            names = (*option.offered, *added)
            raise ConfigError(
                f"{option.flag}: {str(result)!r} is not one of {', '.join(names)}"
                f"{nearest(str(result), names)}"
            )
    return result


def convert(option: OptionValues, value: Any) -> Any:
    """ValueError when `value` cannot be what the option holds."""
    if option.secret:
        return value if isinstance(value, Secret) else Secret(plain_text(value))
    if option.shape == "json":
        return json_value(value) if isinstance(value, str) else value
    if option.shape == "bool":
        return switch(value)
    if option.shape.startswith("list of "):
        reader = number_reader(option.shape.removeprefix("list of "))
        pieces = cast("Iterable[Any]", value) if isinstance(value, list | tuple) else [value]
        return tuple(reader(plain_text(piece)) for piece in pieces)
    if option.shape == "int":
        return value if type(value) is int else whole_number(plain_text(value))
    text = plain_text(value)
    return finite_number(text) if option.shape == "float" else text


def switch(value: Any) -> bool:
    found = value if isinstance(value, bool) else SWITCH.get(str(value).strip().lower())
    if found is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return found


def plain_text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[Any]", value))
    if not isinstance(value, str | int | float):
        raise ValueError(f"must be one value, got {type(value).__name__}")
    return str(value)


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
