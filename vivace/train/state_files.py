"""Sequences of tokens and the model's hidden states behind them, in memory-mapped files.

`tokens.bin` int32 and `states.bin` bfloat16 have their whole size from the beginning, so that a
disk without room is noticed then; `sequences.jsonl` says what of them is filled.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from vivace.errors import CannotStart
from vivace.train.recorder import STORED

SPARE_BYTES = 256 << 20
"""that stay free on the disk"""


class StoredSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `first` to `first + count`. `prompt`: the number of what it was made of; `answer`: how
    many of its tokens are the prompt, which is not learned."""

    first: int
    count: int
    prompt: int
    answer: int
    held_out: bool = False


def needed_bytes(tokens: int, width: int) -> int:
    return tokens * (4 + 2 * width)


def check_room(folder: Path, tokens: int, width: int) -> None:
    """Raises CannotStart where the disk of `folder`, which may not be there, has no room."""
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    there = sum(path.stat().st_size for path in folder.glob("*.bin"))  # it was begun before
    needed = needed_bytes(tokens, width) - there + SPARE_BYTES
    free = shutil.disk_usage(above).free
    if needed > free:
        raise CannotStart(
            f"{folder}: hidden states of {tokens:,} tokens need {needed / 1e9:.1f} GB and "
            f"{free / 1e9:.1f} GB are free on its disk; give fewer --tokens, or another --output"
        )


class StateFiles:
    """Of up to `tokens` tokens, with `width` numbers each."""

    def __init__(self, folder: Path, tokens: int, width: int) -> None:
        """Made where they are missing. Raises OSError."""
        self.width = width
        self._index = folder / "sequences.jsonl"
        self.sequences = self._read_index()
        self._tokens = map_file(folder / "tokens.bin", tokens, torch.int32)
        self._states = map_file(folder / "states.bin", tokens * width, STORED).view(tokens, width)

    @property
    def room(self) -> int:
        """Tokens that can still be added."""
        return len(self._tokens) - self.count

    @property
    def count(self) -> int:
        """Tokens that are there."""
        return self.sequences[-1].first + self.sequences[-1].count if self.sequences else 0

    def add(
        self, tokens: Sequence[int], states: Tensor, *, prompt: int, answer: int, held_out: bool
    ) -> None:
        """`states` [at least as many, width]"""
        first, count = self.count, len(tokens)
        self._tokens[first : first + count] = torch.tensor(tokens, dtype=torch.int32)
        self._states[first : first + count].copy_(states[:count])
        found = StoredSequence(
            first=first, count=count, prompt=prompt, answer=answer, held_out=held_out
        )
        with self._index.open("ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")
        self.sequences.append(found)

    def tokens(self, one: StoredSequence) -> Tensor:
        """[count] int64"""
        return self._tokens[one.first : one.first + one.count].long()

    def states(self, one: StoredSequence) -> Tensor:
        """[count, width] float32"""
        return self._states[one.first : one.first + one.count].float()

    def _read_index(self) -> list[StoredSequence]:
        if not self._index.exists():
            return []
        found = list[StoredSequence]()
        for line in self._index.read_bytes().splitlines():
            try:
                found.append(msgspec.json.decode(line, type=StoredSequence))
            except msgspec.DecodeError:  # the last one, of a machine that was switched off
                break
        return found


def map_file(path: Path, count: int, dtype: torch.dtype) -> Tensor:
    """[count], zeros at first. Raises OSError, also where the disk has no room."""
    size = count * dtype.itemsize
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
    return torch.from_file(str(path), shared=True, size=count, dtype=dtype)
