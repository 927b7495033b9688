"""Text of a script, some of it known only on the machine that would run it."""

from __future__ import annotations

import msgspec

from vivace.deploy.shell.placeholders import TOKEN, show_placeholders, token, token_name


class Unknown(msgspec.Struct, frozen=True):
    """`origin` is the part of the script that yields the text: `hostname -I`, `$HOME`."""

    origin: str


Text = tuple[str | Unknown, ...]
"""Pieces in order; no two adjacent ones are str, and none is empty."""
EMPTY: Text = ()
MAX_LENGTH = 1 << 18
"""characters of one text"""
MAX_WORDS = 1 << 14
"""of one array or command"""


class TextTooLong(Exception):
    """A text or an array that a script makes longer and longer."""


def text(value: str) -> Text:
    """Tokens in it are what they stand for."""
    if "Vx" not in value:
        return (value,) if value else EMPTY
    pieces = TOKEN.split(value)
    return tuple(
        Unknown(token_name(piece)) if index % 2 else piece
        for index, piece in enumerate(pieces)
        if piece
    )


def unknown(origin: str) -> Text:
    return (Unknown(show_placeholders(origin)),)


def join_script(words: list[Text]) -> str:
    """Words as the text of a script, with tokens for what is unknown."""
    return " ".join(
        "".join(piece if isinstance(piece, str) else token(piece.origin) for piece in word)
        for word in words
    )


def concatenate(*parts: Text) -> Text:
    found: list[str | Unknown] = []
    for part in parts:
        for piece in part:
            if isinstance(piece, str) and found and isinstance(found[-1], str):
                found[-1] += piece
            else:
                found.append(piece)
    if len(found) > MAX_LENGTH or sum(len(each) for each in found if isinstance(each, str)) > (
        MAX_LENGTH
    ):
        raise TextTooLong(f"a text of more than {MAX_LENGTH} characters")
    return tuple(found)


def known_text(value: Text) -> str | None:
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
            open_word = concatenate(open_word or EMPTY, (piece,))
            continue
        parts = piece.split()
        if open_word is not None and piece[0].isspace():
            words.append(open_word)
            open_word = None
        for index, part in enumerate(parts):
            if index:
                words.append(open_word or EMPTY)
                open_word = None
            open_word = concatenate(open_word or EMPTY, text(part))
        if parts and piece[-1].isspace():
            words.append(open_word or EMPTY)
            open_word = None
    return words if open_word is None else [*words, open_word]


def with_default(operator: str, value: Text | None, default: Text) -> Text:
    """A variable that the script never sets counts as unset, so its default is used."""
    if operator in (":+", "+"):
        return EMPTY if value is None or (value == EMPTY and operator == ":+") else default
    if value is None or (value == EMPTY and operator.startswith(":")):
        return default
    return value


def join_elements(elements: list[Text]) -> list[Text]:
    return [part for element in elements for part in (text(" "), element)][1:]
