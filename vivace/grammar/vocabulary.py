"""The tokens of a model as grammars need them, from Vivace's own tokenizer of any kind of file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vivace.grammar.backend import TokenVocabulary

if TYPE_CHECKING:
    from vivace.frontend.tokenizer import Tokenizer

FRAME = "\n"
"""in front of a text: tokenizers put a space before what begins a prompt"""
AHEAD = (128, 1024, 8192)
"""characters of a forced text whose tokens are looked for: behind each it is asked for again"""
ENOUGH = 16
"""tokens: those at the end of a text the library takes back, since others may follow"""


def token_vocabulary(tokenizer: Tokenizer, eos_ids: Sequence[int], size: int) -> TokenVocabulary:
    """`size`: ids of the model; logits may have more of them than there are tokens."""
    known = min(size, tokenizer.vocabulary)
    tokens = [tokenizer.token_bytes(token) for token in range(known)]
    special = sorted(token for token in {*tokenizer.special_ids, *eos_ids} if token < known)
    return TokenVocabulary(
        tokens=[*tokens, *[b""] * (size - known)],
        special_ids=special,
        special_texts={
            tokenizer.token_text(token): token for token in special if token not in eos_ids
        },
        eos_ids=tuple(eos_ids),
        encode=ExactEncoder(tokenizer).encode,
    )


class ExactEncoder:
    """Tokens that together are a text, to the byte: as the tokenizer divides it behind other text,
    else each the longest that fits."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self._ids: dict[bytes, int] = {}
        self._longest = 0

    def encode(self, text: str) -> list[int]:
        """Of a long text the first tokens."""
        for length in AHEAD:
            if len(text) <= length:
                break
            if len(ids := self._encode(text[:length])) >= ENOUGH:
                return ids[: len(ids) // 2]  # the cut changes only the last ones
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        wanted = text.encode()
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if self._is_exact(ids, wanted):
            return ids
        return self._behind_frame(text, wanted) or self._greedy(wanted)

    def _is_exact(self, ids: list[int], wanted: bytes) -> bool:
        spelled = b"".join(map(self._tokenizer.token_bytes, ids))
        return spelled == wanted and self._special.isdisjoint(ids)

    def _behind_frame(self, text: str, wanted: bytes) -> list[int] | None:
        ids = self._tokenizer.encode(FRAME + text, add_special_tokens=False)
        for start in range(1, min(4, len(ids))):
            if self._is_exact(ids[start:], wanted):
                return ids[start:]
        return None

    def _greedy(self, wanted: bytes) -> list[int]:
        """What no token begins is left out, and the rest with it."""
        if not self._ids:
            table = self._tokenizer.token_bytes
            ids = range(self._tokenizer.vocabulary)
            self._ids = {table(i): i for i in reversed(ids) if i not in self._special and table(i)}
            self._longest = max(map(len, self._ids), default=0)
        found, place = list[int](), 0
        while place < len(wanted):
            lengths = range(min(self._longest, len(wanted) - place), 0, -1)
            length = next((n for n in lengths if wanted[place : place + n] in self._ids), 0)
            if not length:
                break
            found.append(self._ids[wanted[place : place + length]])
            place += length
        return found


class SpecialWords:
    """Texts that are tokens of their own, found in other texts: the first one, and of those that
    begin there the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {word: token for word, token in ids.items() if word}
        self._lengths: dict[str, list[int]] = {}
        for length in sorted({len(word) for word in self._ids}, reverse=True):
            for first in {word[0] for word in self._ids if len(word) == length}:
                self._lengths.setdefault(first, []).append(length)
        self._firsts = re.compile(f"[{re.escape(''.join(self._lengths))}]") if self._ids else None

    def split(self, text: str) -> list[str | int]:
        """The text between them, and their ids."""
        found: list[str | int] = []
        done = 0
        for hit in self._firsts.finditer(text) if self._firsts else ():
            place = hit.start()
            word = self._word_at(text, place) if place >= done else ""
            if word:
                found += [text[done:place]] if place > done else []
                found.append(self._ids[word])
                done = place + len(word)
        return [*found, text[done:]] if done < len(text) else found

    def _word_at(self, text: str, place: int) -> str:
        words = (text[place : place + length] for length in self._lengths[text[place]])
        return next((word for word in words if word in self._ids), "")
