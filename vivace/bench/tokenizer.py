"""The client's view of the tokenizer, and prompts of an exact length made with it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vivace.bench.errors import BenchError
from vivace.bench.http_json import ask

POOL = 4096
"""Ids drawn once per tokenizer; prompts are made of these."""
FEWEST_WORDS = 16
FITTING_ROUNDS = 8
PLAIN_WORD = re.compile(r" [A-Za-z]+")


class TokenCodec(Protocol):
    """Batched encode and decode; `name` is shown and stored with the result."""

    name: str
    vocabulary: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...
    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]: ...
    def chat(self, messages: list[dict[str, Any]]) -> str: ...


class LocalCodec:
    """The tokenizer of a checkpoint on this host (see `vivace.frontend.tokenizer`)."""

    def __init__(self, path: str | None) -> None:
        from vivace.checkpoint.source import locate
        from vivace.frontend.tokenizer import load_tokenizer

        self._tokenizer = load_tokenizer(locate(path, load_format="auto"))
        self.vocabulary: int = self._tokenizer.vocabulary
        self.name = path or "the embedded model's tokenizer"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._tokenizer.encode_batch(texts, add_special_tokens=False)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._tokenizer.decode(list(row), skip_special_tokens=True) for row in rows]

    def chat(self, messages: list[dict[str, Any]]) -> str:
        template = self._tokenizer.chat
        if template is None:
            raise BenchError(
                f"{self.name} has no chat template; use a model that has one, or leave "
                "--apply-chat-template out"
            )
        return template.render(messages, add_generation_prompt=True)


class ServerCodec:
    """The server's own /tokenize and /detokenize."""

    def __init__(
        self, base_url: str, headers: Mapping[str, str], vocabulary: int, timeout: float = 60.0
    ) -> None:
        self._base_url = base_url
        self._headers = dict(headers)
        self._timeout = timeout
        self.vocabulary = vocabulary
        self.name = f"{base_url}/tokenize"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        body = {"prompt": list(texts), "add_special_tokens": False}
        return self._ask("/tokenize", body)["tokens"]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        if not rows:
            return []
        body = {"tokens": [list(row) for row in rows], "skip_special_tokens": True}
        return self._ask("/detokenize", body)["text"]

    def chat(self, messages: list[dict[str, Any]]) -> str:
        answer = self._ask("/tokenize", {"messages": messages, "add_generation_prompt": True})
        return self.decode([answer["tokens"]])[0]

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return ask(self._base_url + path, body, headers=self._headers, timeout=self._timeout)


class SplitCodec:
    """Every character is a token (its code point). For tests and for runs without a tokenizer."""

    name = "one token per character"
    vocabulary = 0x250

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(character) for character in text] for text in texts]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(map(chr, row)) for row in rows]

    def chat(self, messages: list[dict[str, Any]]) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


class PromptMaker:
    """Draws prompts of an asked length, as ids or as text. Deterministic by seed and tokenizer."""

    def __init__(self, codec: TokenCodec, seed: int) -> None:
        self.codec = codec
        self.chance = random.Random(seed)
        self._ordinary = ordinary_ids(codec)
        self._words: list[int] | None = None

    @property
    def ordinary(self) -> list[int]:
        """Ids that are not special and stand for some text."""
        return self._ordinary

    def ids(self, length: int) -> list[int]:
        return self.chance.choices(self._ordinary, k=length)

    def texts(self, lengths: Sequence[int]) -> list[tuple[str, int]]:
        """Texts with their real token counts, which are the asked ones where the tokenizer allows.

        Words that are one token each are joined; the result is encoded again and corrected until
        it fits. A tokenizer that merges over word borders may leave a small difference, and then
        the true count is returned.
        """
        pool = self._word_pool()
        rows = [self.chance.choices(pool, k=length) for length in lengths]
        return self.fit(rows, lengths)

    def fit(self, rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[tuple[str, int]]:
        """Turn rows of ids into texts that encode to `lengths` tokens, as far as possible."""
        pool = self._word_pool()
        texts = self.codec.decode(rows)
        counted = self.codec.encode(texts)
        for _ in range(FITTING_ROUNDS):
            wrong = [i for i, ids in enumerate(counted) if len(ids) != lengths[i]]
            if not wrong:
                break
            resized = [self._resize(counted[i], lengths[i], pool) for i in wrong]
            again = self.codec.decode(resized)
            for i, text, ids in zip(wrong, again, self.codec.encode(again), strict=True):
                texts[i], counted[i] = text, ids
        return [(text, len(ids)) for text, ids in zip(texts, counted, strict=True)]

    def _resize(self, ids: Sequence[int], length: int, pool: Sequence[int]) -> list[int]:
        missing = length - len(ids)
        if missing > 0:
            return [*ids, *self.chance.choices(pool, k=missing)]
        return list(ids[:length])

    def _word_pool(self) -> list[int]:
        if self._words is None:
            words = plain_words(self.codec, self._ordinary)
            self._words = words if len(words) >= FEWEST_WORDS else self._ordinary
        return self._words


def ordinary_ids(codec: TokenCodec) -> list[int]:
    """Up to POOL ids, spread over the vocabulary, that decode to text (special ids do not)."""
    if codec.vocabulary < 1:
        raise BenchError(f"{codec.name} reports no vocabulary; give --tokenizer PATH")
    drawn = random.Random(0).sample(range(codec.vocabulary), min(POOL, codec.vocabulary))
    texts = codec.decode([[token] for token in drawn])
    kept = sorted(token for token, text in zip(drawn, texts, strict=True) if text)
    if not kept:
        raise BenchError(f"{codec.name} decodes every id to nothing; give another --tokenizer")
    return kept


def plain_words(codec: TokenCodec, ids: Sequence[int]) -> list[int]:
    """Those ids that are a space and letters, and that encoding such text gives back."""
    texts = codec.decode([[token] for token in ids])
    words = [(i, t) for i, t in zip(ids, texts, strict=True) if PLAIN_WORD.fullmatch(t)]
    encoded = codec.encode([text for _, text in words])
    return [token for (token, _), back in zip(words, encoded, strict=True) if back == [token]]


def choose_codec(
    tokenizer: str, model: str, base_url: str, headers: Mapping[str, str], served: Mapping[str, Any]
) -> tuple[TokenCodec, str]:
    """The tokenizer to use and a sentence why.

    In order: --tokenizer; --model when it is a path here; the server's tokenizer path when it
    exists here; the server's /tokenize; the embedded model's tokenizer. `served` is the server's
    model description (/get_model_info), empty when it has none.
    """
    if tokenizer:
        return LocalCodec(tokenizer), f"tokenizer: {tokenizer} (--tokenizer)"
    if model and Path(model).exists():
        return LocalCodec(model), f"tokenizer: {model} (--model)"
    for key in ("tokenizer_path", "model_path"):
        path = str(served.get(key) or "")
        if path and Path(path).exists():
            return LocalCodec(path), f"tokenizer: {path} (the server's {key})"
    if served:
        vocabulary = int(served.get("vocab_size") or served.get("vocabulary") or 0)
        remote = ServerCodec(base_url, headers, vocabulary or 32_000)
        if speaks_tokens(remote):
            return remote, f"tokenizer: {remote.name}"
    reason = "tokenizer: the embedded model's (the server names none; give --tokenizer to change)"
    return LocalCodec(None), reason


def speaks_tokens(codec: ServerCodec) -> bool:
    """Whether the server's /tokenize and /detokenize take lists, as this client sends them."""
    try:
        rows = codec.encode(["a b"])
        return bool(rows[0]) and isinstance(codec.decode(rows)[0], str)
    except (BenchError, KeyError, IndexError, TypeError):
        return False
