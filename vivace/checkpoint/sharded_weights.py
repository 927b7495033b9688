"""Weights of one rank in files of its own: written as a model takes them, and read again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.safetensors_files import SafetensorsFiles
from vivace.checkpoint.saved_state import (
    SavedState,
    metadata,
    parse_part,
    part_name,
    read_saved_state,
)
from vivace.checkpoint.weight_files import files_of_rank, fill
from vivace.checkpoint.weights import ALL, FLOATS, CheckpointError, OpenWeights
from vivace.platforms.ops.stored import StoredBlocks


class RankFiles:
    """A `TensorReader` of the files of one rank."""

    def __init__(self, files: Collection[Path], rank: int, pattern: str) -> None:
        own = files_of_rank(files, pattern, rank)
        if not own:
            raise CheckpointError(f"{fill(pattern, rank, 0)} is missing; save the model again")
        self.place = str(own[0].parent)
        self.state = read_saved_state(own[0])
        self._files = SafetensorsFiles(own)
        self._parts: dict[str, list[str]] = {}
        """of each tensor, as they are named in the files"""
        self._shapes: dict[str, tuple[int, ...]] = {}
        for stored in self._files.names():
            self._add(stored)

    def _add(self, stored: str) -> None:
        try:
            name, ranges = parse_part(stored)
        except ValueError as error:
            raise CheckpointError(f"{self.place}: {error}; save the model again") from None
        held = self._files.shape(stored)
        parts = ranges or [None] * len(held)
        whole = [
            part is None or part[1] - part[0] == n for part, n in zip(parts, held, strict=False)
        ]
        if len(parts) != len(held) or not all(whole):
            raise CheckpointError(
                f"{self.place}: {stored[:80]!r} has the shape {list(held)}; save the model again"
            )
        shape = tuple(n if part is None else part[2] for part, n in zip(parts, held, strict=True))
        if self._shapes.setdefault(name, shape) != shape:
            raise CheckpointError(f"{self.place}: parts of two tensors {name!r}; save them again")
        self._parts.setdefault(name, []).append(stored)

    def names(self) -> Iterable[str]:
        return self._parts

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype | None:
        return self._files.dtype(self._parts[name][0])

    def nbytes(self, name: str) -> int:
        """Of the whole tensor, most of which other ranks have."""
        dtype = self.dtype(name)
        return torch.Size(self.shape(name)).numel() * (1 if dtype is None else dtype.itemsize)

    def label(self, name: str) -> str:
        return self._files.label(self._parts[name][0]) if name in self._parts else name

    def kind(self, name: str) -> str:
        return self._files.kind(self._parts[name][0])

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, depth: slice = ALL
    ) -> Tensor:
        wanted = part_name(name, self.shape(name), (rows, columns, depth))
        if wanted not in self._parts[name]:
            raise CheckpointError(
                f"{self.label(name)} is there, {wanted!r} is not: it was saved for a rank with "
                "another share; save the model again, with the flags of this start"
            )
        return self._files.read(wanted)

    read_stored = read


class SavingWeights:
    """`weights`, of which every part that is taken goes to `keep`, once, with its name."""

    def __init__(self, weights: OpenWeights, keep: Callable[[str, Tensor], None]) -> None:
        self.tied = weights.tied
        self.has = weights.has
        self.names = weights.names
        self.shape = weights.shape
        self.dtype = weights.dtype
        self.label = weights.label
        self.finish = weights.finish
        self._weights = weights
        self._keep = keep
        self._kept: set[str] = set()

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: slice = ALL,
        columns: slice = ALL,
        *,
        depth: slice = ALL,
        dtypes: Collection[torch.dtype] = FLOATS,
    ) -> Tensor:
        taken = self._weights.take(name, shape, rows, columns, depth=depth, dtypes=dtypes)
        self._note(part_name(name, shape, (rows, columns, depth)), taken)
        return taken

    def take_stored(
        self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL
    ) -> Tensor | StoredBlocks:
        taken = self._weights.take_stored(name, shape, rows, columns)
        if not isinstance(taken, Tensor):
            raise CheckpointError(f"{self.label(name)}: blocks of a GGUF file are not saved")
        self._note(part_name(name, shape, (rows, columns)), taken)
        return taken

    def _note(self, part: str, taken: Tensor) -> None:
        if part not in self._kept:
            self._kept.add(part)
            self._keep(part, taken)


class PartWriter:
    """Files of at most `max_size` bytes (or one tensor), which get their names when they are
    whole."""

    def __init__(self, folder: Path, pattern: str, max_size: int, state: SavedState) -> None:
        self._folder = folder
        self._pattern = pattern
        self._max_size = max_size
        self._state = state
        self._tensors: dict[str, Tensor] = {}
        self._bytes = 0
        self._part = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """A copy is kept: its owner may change it. Raises SourceError where it cannot be
        written."""
        if self._tensors and self._bytes + tensor.nbytes > self._max_size:
            self.flush()
        self._tensors[name] = tensor.detach().cpu().contiguous().clone()
        self._bytes += tensor.nbytes

    def flush(self) -> None:
        path = self._folder / fill(self._pattern, self._state.rank, self._part)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            save_file(self._tensors, unfinished, metadata(self._state))
            unfinished.chmod(0o644)
            unfinished.replace(path)
        except Exception as error:  # safetensors has errors of its own for a full disk
            unfinished.unlink(missing_ok=True)
            raise SourceError(f"{path}: {' '.join(str(error).split())[:200]}") from None
        self._tensors, self._bytes, self._part = {}, 0, self._part + 1
