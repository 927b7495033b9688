"""Which text each token id stands for, of two models side by side. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from vivace.checkpoint.gguf_file import GGUFFile
from vivace.checkpoint.json_files import read_json

TOKENIZER = "tokenizer.json"
LARGEST = 1 << 27
"""bytes of a tokenizer.json that is read"""
GGUF_WORDS = "tokenizer.ggml.tokens"


def read_words(path: Path) -> dict[int, str]:
    """Of a folder with tokenizer.json or a GGUF file: id -> token; empty where there is neither, or
    none of a kind that is known. Raises SourceError."""
    if path.is_file():
        words = GGUFFile(path).metadata.get(GGUF_WORDS)
        return {at: str(word) for at, word in enumerate(words)} if words is not None else {}
    described: dict[str, Any] = read_json(path / TOKENIZER, limit=LARGEST)
    found = read_ids(described.get("model"))
    for each in items(described.get("added_tokens")):
        if isinstance(each, dict):
            one = cast("dict[str, Any]", each)
            at, word = one.get("id"), one.get("content")
            if isinstance(at, int) and isinstance(word, str):
                found[at] = word
    return found


def read_ids(model: object) -> dict[int, str]:
    """Of a model's `vocab`: an object of ids (BPE), or a list of pairs (Unigram)."""
    vocabulary = cast("dict[str, Any]", model).get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        ids = cast("dict[str, Any]", vocabulary)
        return {at: word for word, at in ids.items() if isinstance(at, int)}
    pairs = [cast("list[Any]", pair) for pair in items(vocabulary) if isinstance(pair, list)]
    return {at: str(pair[0]) for at, pair in enumerate(pairs) if pair}


def items(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def differing(one: dict[int, str], other: dict[int, str]) -> list[int]:
    """Ids that both have, for different tokens."""
    return [at for at, word in one.items() if other.get(at, word) != word]
