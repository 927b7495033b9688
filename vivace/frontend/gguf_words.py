"""The vocabulary in a GGUF file's metadata (`tokenizer.ggml.*`), checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vivace.checkpoint.fields import CORRECT, Column, ConfigFields, Flag, Integer
from vivace.checkpoint.gguf_metadata import NO_TOKEN
from vivace.frontend.errors import TokenizerError

UNKNOWN, CONTROL, USER = 2, 3, 4
"""types of tokens"""
KEY = "tokenizer.ggml."
LONGEST_TOKEN = 4096
ENDS_BY_NAME = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|eom_id|>")


class GGUFWords:
    """The vocabulary's columns, checked against each other."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.fields = ConfigFields(metadata, lambda key: f"{where}: {key}", CORRECT)
        self.tokens = self.fields.need(KEY + "tokens", Column(str, "a list of texts"))
        count = len(self.tokens)
        if not count:
            raise TokenizerError(f"{where}: no {KEY}tokens in its metadata: no tokenizer inside")
        if (longest := max(map(len, self.tokens))) > LONGEST_TOKEN:
            raise TokenizerError(f"{where}: {KEY}tokens has one of {longest} characters")
        types = Column(int, f"a list of {count} numbers from 0 to 6", count)
        self.types = self.fields.get(KEY + "token_type", types, [1] * count)
        scores = Column(float, f"a list of {count} finite numbers", count)
        self.scores = self.fields.get(KEY + "scores", scores, [0.0] * count)
        if min(self.types) < 0 or max(self.types) > 6:
            raise self.fields.refusal(KEY + "token_type", f"it must be {types.expected}")
        if not all(map(math.isfinite, self.scores)):
            raise self.fields.refusal(KEY + "scores", f"it must be {scores.expected}")

    def id(self, name: str) -> int | None:
        """None too where the file names what is no token: published files do, `models.facts` says
        so of ends, and llama.cpp goes on as well."""
        found = self.fields.find(f"{KEY}{name}_token_id", Integer(0, NO_TOKEN))
        return found if found is not None and found < len(self.tokens) else None

    def named(self, name: str) -> str | None:
        found = self.id(name)
        return None if found is None else self.tokens[found]

    def added(self, name: str, default: bool) -> str | None:
        """The token that is put to every prompt."""
        if not self.flag(f"add_{name}_token", default):
            return None
        found, key = self.named(name), f"{KEY}{name}_token_id"
        if found is None and self.fields.values.get(key) not in (None, NO_TOKEN):
            count = len(self.tokens)
            raise self.fields.refusal(key, f"prompts get it, so it must be below {count}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        return self.fields.get(KEY + name, Flag(), default)

    def ends(self) -> list[int]:
        """eos, end of turn, end of message; also control tokens known to end a turn."""
        by_key = [i for name in ("eos", "eot", "eom") if (i := self.id(name)) is not None]
        by_name = [
            i
            for i, kind in enumerate(self.types)
            if kind == CONTROL and self.tokens[i] in ENDS_BY_NAME
        ]
        return list(dict.fromkeys([*by_key, *by_name]))

    def merges(self) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        lines = self.fields.get(KEY + "merges", Column(str, "a list of texts"), [])
        for number, line in enumerate(lines):
            cut = line.find(" ", 1)
            if cut < 0:
                raise TokenizerError(
                    f"{self.where}: {KEY}merges[{number}] is not a pair: {line[:80]!r}"
                )
            pairs.append((line[:cut], line[cut + 1 :]))
        return pairs

    def vocabulary(self) -> dict[str, int]:
        """Token -> id; of equal tokens the first keeps the name."""
        return {token: i for i, token in reversed(list(enumerate(self.tokens)))}
