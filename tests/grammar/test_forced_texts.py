"""Long texts that alone may follow: only their first tokens are looked for."""

from __future__ import annotations

from typing import Any

import pytest

from vivace.grammar.vocabulary import ENOUGH, ExactEncoder, SpecialWords


class WideTokenizer:
    """Every byte, and 64 spaces; the last one is special."""

    vocabulary = 258
    special_ids = frozenset((257,))

    def __init__(self) -> None:
        self.read = 0
        """characters"""

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else (b" " * 64, b"<end>")[token - 256]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.read += len(text)
        wide = text.encode().replace(b" " * 64, b"\xff").replace(b"<end>", b"\xfe")
        return [{255: 256, 254: 257}.get(byte, byte) for byte in wide]


@pytest.mark.parametrize("text", ["a" * 9000, " " * 90_000, "ä" * 5000, "a<end>" * 2000, "abc", ""])
def test_they_are_the_texts_first_tokens(text: str) -> None:
    tokenizer: Any = WideTokenizer()
    ids = ExactEncoder(tokenizer).encode(text)
    said = b"".join(map(tokenizer.token_bytes, ids))
    assert text.encode().startswith(said) and 257 not in ids
    assert len(ids) >= min(ENOUGH // 2, len(text)) and tokenizer.read < 20_000
    assert len(text) > 100 or said == text.encode()


def test_special_words_are_found_in_proportion_to_the_text() -> None:
    words = SpecialWords({"<a>": 1, "<a><b>": 2, "<": 3, "x" * 40: 4})
    assert words.split("y<a><b>z<a>") == ["y", 2, "z", 1]
    assert words.split("<c") == [3, "c"] and words.split("") == []
    assert words.split("<a>" * 50_000 + "!") == [1] * 50_000 + ["!"]
    assert SpecialWords({}).split("<a>") == ["<a>"]
