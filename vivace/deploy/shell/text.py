"""Text of a script, some of it known only on the machine that would run it."""

from __future__ import annotations

import msgspec


class Unknown(msgspec.Struct, frozen=True):
    """`origin` is the part of the script that yields the text: `hostname -I`, `$HOME`."""

    origin: str


Text = tuple[str | Unknown, ...]
"""Pieces in order; no two adjacent ones are str, and none is empty."""
EMPTY: Text = ()


def text(value: str) -> Text:
    return (value,) if value else EMPTY


def unknown(origin: str) -> Text:
    return (Unknown(origin),)


def joined(*parts: Text) -> Text:
    found: list[str | Unknown] = []
    for part in parts:
        for piece in part:
            if isinstance(piece, str) and found and isinstance(found[-1], str):
                found[-1] += piece
            else:
                found.append(piece)
    return tuple(found)


def known(value: Text) -> str | None:
    """The text if all of it is known, else None."""
    if not value:
        return ""
    return value[0] if len(value) == 1 and isinstance(value[0], str) else None


def only_unknown(value: Text) -> Unknown | None:
    """The unknown if it is the only piece, else None."""
    return value[0] if len(value) == 1 and isinstance(value[0], Unknown) else None


def display(value: Text) -> str:
    """For people and for the words of a command: what is unknown in angle brackets."""
    return "".join(piece if isinstance(piece, str) else f"<{piece.origin}>" for piece in value)


def split(value: Text) -> list[Text]:
    """Words of an unquoted expansion: cut at blanks, as with the usual IFS."""
    words: list[Text] = []
    open_word: Text | None = None
    for piece in value:
        if isinstance(piece, Unknown):
            open_word = joined(open_word or EMPTY, (piece,))
            continue
        parts = piece.split()
        if open_word is not None and piece[0].isspace():
            words.append(open_word)
            open_word = None
        for index, part in enumerate(parts):
            if index:
                words.append(open_word or EMPTY)
                open_word = None
            open_word = joined(open_word or EMPTY, text(part))
        if parts and piece[-1].isspace():
            words.append(open_word or EMPTY)
            open_word = None
    return words if open_word is None else [*words, open_word]
