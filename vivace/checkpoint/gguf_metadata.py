"""A GGUF file's metadata by architecture: `<architecture>.<key>` under the keys of a Hugging Face
config.json."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from vivace.checkpoint.fields import abbreviate
from vivace.checkpoint.gguf_file import GGUFError, GGUFFile

NO_TOKEN = 0xFFFFFFFF

Config = dict[str, Any]


class Metadata:
    """Access to `<architecture>.<key>` that remembers what was asked for."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture
        self.spelling: dict[str, str] = {"vocab_size": "rows of token_embd.weight"}

    def get(self, key: str) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}")

    def translate(self, keys: dict[str, str], within: str = "") -> Config:
        """Those of `keys` (ours -> the file's) that the file has."""
        names = {ours: f"{self.architecture}.{theirs}" for ours, theirs in keys.items()}
        self.spelling.update({within + ours: name for ours, name in names.items()})
        metadata = self.file.metadata
        found = {ours: metadata[name] for ours, name in names.items() if name in metadata}
        for ours, value in found.items():
            if not finite(value):
                raise GGUFError(
                    f"{self.file.path}: {names[ours]} is {abbreviate(value)}, which is no number; "
                    "the file is damaged: fetch it again"
                )
        return found

    def token(self, key: str) -> Any:
        """A token id; None where the file says that there is none."""
        self.spelling[key] = f"tokenizer.ggml.{key}"
        found = self.file.metadata.get(f"tokenizer.ggml.{key}")
        return None if found == NO_TOKEN else found

    def quotient(self, dividend: str, divisor: str) -> int | None:
        """Of two whole numbers; None where the file has none or they do not divide."""
        above, below = self.get(dividend), self.get(divisor)
        if not isinstance(above, int) or not isinstance(below, int) or below < 1:
            return None
        return None if above % below else above // below

    def difference(self, ours: str, whole: str, part: str) -> int | None:
        """Of two whole numbers, for our key `ours`; None where the file has none."""
        self.spelling[ours] = f"{self.architecture}.{whole} less {part}"
        above, below = self.get(whole), self.get(part)
        if type(above) is not int or type(below) is not int:
            return None
        return above - below

    def count_words(self) -> int:
        """Of the vocabulary. Raises GGUFError where the file has no embedding of some."""
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None:
            raise GGUFError(f"{self.file.path}: the tensor token_embd.weight is missing")
        words = self.file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(words, list) and len(words) > embedding.shape[0]:
            raise GGUFError(
                f"{self.file.path}: tokenizer.ggml.tokens has {len(words)} entries, "
                f"token_embd.weight only {embedding.shape[0]} rows; the file is damaged: fetch it "
                "again"
            )
        return embedding.shape[0]

    def has_tensor(self, name: str) -> bool:
        return name in self.file.tensors


def finite(value: Any) -> bool:
    """No NaN and no infinity, in lists neither (a config.json cannot have them)."""
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def as_written(value: Any) -> Any:
    """The number somebody wrote that became a float32: 0.95, not 0.949999988079071."""
    if not isinstance(value, float):
        return value
    stored = ctypes.c_float(value).value
    written = (float(f"{stored:.{digits}g}") for digits in range(1, 10))
    return next((number for number in written if ctypes.c_float(number).value == stored), stored)
