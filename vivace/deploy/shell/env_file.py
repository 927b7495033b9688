"""Files of NAME=VALUE lines, as docker and compose read them."""

from __future__ import annotations


def variables_in(text: str) -> dict[str, str]:
    """Of equal names the last counts; comments and lines without a name are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip().isidentifier():
            found[name.strip()] = unquote(value.strip())
    return found


def unquote(value: str) -> str:
    for quote in "'\"":
        if len(value) > 1 and value.startswith(quote) and quote in value[1:]:
            return value[1 : value.index(quote, 1)]
    return value.partition(" #")[0].rstrip()
