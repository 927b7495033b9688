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
from msgspec.structs import replace
from torch import Tensor

from vivace.errors import CannotStart
from vivace.train.recorder import STORED

TOKENS, NUMBERS, INDEX = STATES = "tokens.bin", "states.bin", "sequences.jsonl"
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


def check_room(folder: Path, tokens: int, width: int, head: int) -> None:
    """`head`: bytes of what is saved of the head. Raises CannotStart where the disk of `folder`,
    which may not be there, has no room."""
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    there = sum(path.stat().st_size for path in folder.glob("*.bin"))  # it was begun before
    needed = needed_bytes(tokens, width) - there + head + SPARE_BYTES
    free = shutil.disk_usage(above).free
    if needed > free:
        raise CannotStart(
            f"{folder}: hidden states of {tokens:,} tokens and the head need "
            f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on its disk; give fewer "
            "--tokens, or another --output"
        )


class StateFiles:
    """Of up to `tokens` tokens, with `width` numbers each."""

    def __init__(self, folder: Path, tokens: int, width: int) -> None:
        """Made where they are missing. Raises OSError."""
        self.width = width
        self._index = folder / INDEX
        self.sequences = self._read_index(tokens)
        self._tokens = map_file(folder / TOKENS, tokens, torch.int32)
        self._states = map_file(folder / NUMBERS, tokens * width, STORED).view(tokens, width)

    @property
    def room(self) -> int:
        """Tokens that can still be added."""
        return len(self._tokens) - self.count

    @property
    def count(self) -> int:
        """Tokens that are there."""
        return self._end(self.sequences)

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

    def hold_out_one(self) -> None:
        """Where nothing of what is held out was collected: the last sequence."""
        if self.sequences and not any(one.held_out for one in self.sequences):
            self.sequences[-1] = replace(self.sequences[-1], held_out=True)

    def tokens(self, one: StoredSequence) -> Tensor:
        """[count] int64"""
        return self._tokens[one.first : one.first + one.count].long()

    def states(self, one: StoredSequence) -> Tensor:
        """[count, width] float32"""
        return self._states[one.first : one.first + one.count].float()

    def _read_index(self, room: int) -> list[StoredSequence]:
        """Up to the first line that cannot be true: a machine may have been switched off in it."""
        if not self._index.exists():
            return []
        found, lines = list[StoredSequence](), self._index.read_bytes().split(b"\n")[:-1]
        for line in lines:
            try:
                one = msgspec.json.decode(line, type=StoredSequence)
            except msgspec.DecodeError:
                break
            if (
                one.first != self._end(found)
                or not 0 <= one.answer <= one.count <= room - one.first
            ):
                break
            found.append(one)
        if len(found) < len(lines) or not self._index.read_bytes().endswith(b"\n"):
            self._index.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in found))
        return found

    @staticmethod
    def _end(sequences: Sequence[StoredSequence]) -> int:
        return sequences[-1].first + sequences[-1].count if sequences else 0


def map_file(path: Path, count: int, dtype: torch.dtype) -> Tensor:
    """[count], zeros at first. Raises OSError, also where the disk has no room."""
    size = count * dtype.itemsize
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
    return torch.from_file(str(path), shared=True, size=count, dtype=dtype)
