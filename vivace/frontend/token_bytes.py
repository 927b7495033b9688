"""What every token id stands for in bytes and text, worked out once per id.

Full decoding is defined here for the two families that cover nearly every model: the bytes of the
tokens are joined and read as UTF-8 (invalid parts become U+FFFD). So streaming can add up to
exactly the same text without ever decoding twice.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Core

BYTE_LEVEL = "byte-level"
SENTENCEPIECE = "sentencepiece"
OTHER = "other"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
_Utf8 = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How token strings become text. `strips_start`: a space at the start of a text is dropped."""

    kind: str
    strips_start: bool = False
    byte_fallback: bool = False


def detect_decoding(core: Core) -> Decoding:
    """Recognize the decoder of a `tokenizers` object; anything unusual is `OTHER`."""
    if core.decoder is None:
        return Decoding(kind=OTHER)
    steps = _flatten(json.loads(core.decoder.__getstate__()))
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return Decoding(kind=BYTE_LEVEL)
    if not all(_is_sentencepiece_step(step) for step in steps):
        return Decoding(kind=OTHER)
    if "Replace" not in types and "Metaspace" not in types:
        return Decoding(kind=OTHER)
    return Decoding(
        kind=SENTENCEPIECE,
        strips_start=any(_strips_start(step) for step in steps),
        byte_fallback="ByteFallback" in types,
    )


def _flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flatten(part)]


def _is_sentencepiece_step(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "Replace":
            return step["pattern"] == {"String": _SPACE} and step["content"] == " "
        case "Metaspace":
            return step["replacement"] == _SPACE
        case "Strip":
            return step["content"] == " " and step["start"] <= 1 and step["stop"] == 0
        case kind:
            return kind in ("ByteFallback", "Fuse")


def _strips_start(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return step["start"] == 1
    return step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"


def byte_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE writes the 256 bytes (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(rest)})
    return alphabet


class TokenBytes:
    """Bytes and text per token id, filled on first use. Safe to share between threads: an entry is
    a pure function of its id, so a lost race writes the same value twice."""

    def __init__(self, core: Core, decoding: Decoding, hidden: Iterable[int] = ()) -> None:
        self.decoding = decoding
        self.bytes = _Bytes(core, decoding)
        self.texts = _Texts(self.bytes, frozenset())
        self.hidden = frozenset(hidden)
        self.visible_texts = _Texts(self.bytes, self.hidden)

    def decode(self, ids: Iterable[int], *, skip: bool) -> str:
        table, hidden = self.bytes, self.hidden if skip else ()
        text = b"".join([table[i] for i in ids if i not in hidden]).decode("utf-8", "replace")
        return text[1:] if self.decoding.strips_start and text.startswith(" ") else text

    def decode_in_runs(self, ids: Sequence[int], run: int, *, skip: bool) -> Iterator[str]:
        """The same text in parts, `run` ids at a time; a character is in the part it ends in."""
        table, hidden = self.bytes, self.hidden if skip else ()
        read = _Utf8("replace").decode
        begun = not self.decoding.strips_start
        for start in range(0, len(ids), run):
            known = [table[i] for i in ids[start : start + run] if i not in hidden]
            text = read(b"".join(known), start + run >= len(ids))
            if text and not begun:
                begun = True
                text = text.removeprefix(" ")
            yield text


class _Bytes(dict[int, bytes]):
    def __init__(self, core: Core, decoding: Decoding) -> None:
        super().__init__()
        self._core = core
        self._decoding = decoding
        self._alphabet = byte_alphabet()

    def __missing__(self, key: int) -> bytes:
        piece = self._core.id_to_token(key) if 0 <= key < 1 << 32 else None
        value = b"" if piece is None else self._bytes_of(piece)
        if piece is not None:
            self[key] = value  # unknown ids are not kept: they would grow without bound
        return value

    def _bytes_of(self, piece: str) -> bytes:
        if self._decoding.kind == BYTE_LEVEL:
            try:
                return bytes([self._alphabet[char] for char in piece])
            except KeyError:  # an added token outside the alphabet stands for itself
                return piece.encode("utf-8", "replace")
        if self._decoding.byte_fallback and (found := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(found[1], 16)])
        if self._decoding.kind == SENTENCEPIECE:
            piece = piece.replace(_SPACE, " ")
        return piece.encode("utf-8", "replace")


class _Texts(dict[int, str | None]):
    """Text of a token that is whole characters on its own; None when it is part of one."""

    def __init__(self, table: _Bytes, hidden: frozenset[int]) -> None:
        super().__init__()
        self._table = table
        self._hidden = hidden

    def __missing__(self, key: int) -> str | None:
        data = b"" if key in self._hidden else self._table[key]
        try:
            text: str | None = data.decode("utf-8")
        except UnicodeDecodeError:
            text = None
        if key in self._table:
            self[key] = text
        return text
