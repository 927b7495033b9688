"""Reading safetensors checkpoints, single or sharded, mapped from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vivace.checkpoint.fields import readable_key
from vivace.checkpoint.weights import ALL, EMBEDDING, OUTPUT, CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
ROWS_AT_ONCE = 4096
STEM = "model."
LANGUAGE_MODEL = "language_model."
"""what names begin with where a model reads pictures, too"""
OF_PICTURES = ("vision_model.", "vision_tower.", "multi_modal_projector.")
SpellNames = Callable[[Iterable[str]], Mapping[str, str]]
"""names in files -> names that are asked for"""
BARE_EMBEDDING = EMBEDDING.removeprefix(STEM)


class SafetensorsFiles:
    """Tensors of one or more files, by the names that `spell` gives them. Raises CheckpointError on
    a damaged or doubled one."""

    def __init__(self, files: Iterable[Path], spell: SpellNames | None = None) -> None:
        self._stack = ExitStack()
        self._where: dict[str, tuple[Path, Any, str]] = {}
        """name -> file, the file opened, the name that it has there"""
        paths = list(files)
        self.place = str(paths[0].parent if len(paths) > 1 else paths[0])
        for path in paths:
            self._add(path)
        spelled = (spell or spell_whole)(self._where)
        self._where = {name: self._where[stored] for stored, name in spelled.items()}
        if len(self._where) < len(spelled):
            raise CheckpointError(f"{self.place}: some of its tensors have two names each")

    def _add(self, path: Path) -> None:
        try:
            opened = self._stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(
                f"{path}: damaged or truncated safetensors file ({reason}); fetch it again"
            ) from None
        for name in opened.keys():  # noqa: SIM118
            if name in self._where:
                raise CheckpointError(
                    f"{path}: tensor {readable_key(name)} is also in {self._where[name][0]}"
                )
            self._where[name] = (path, opened, name)

    def names(self) -> Iterable[str]:
        return self._where.keys()

    def kind(self, name: str) -> str:
        return str(self._slice(name).get_dtype())

    def _slice(self, name: str) -> Any:
        _, opened, stored = self._where[name]
        return opened.get_slice(stored)

    def dtype(self, name: str) -> torch.dtype | None:
        return DTYPES.get(self.kind(name))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def nbytes(self, name: str) -> int:
        dtype = self.dtype(name)
        return prod(self.shape(name)) * (1 if dtype is None else dtype.itemsize)

    def label(self, name: str) -> str:
        path, _, stored = self._where[name]
        return f"{path}: tensor {stored!r}"

    def same(self, first: str, second: str) -> bool:
        """Whether two matrices have the same numbers; read in pieces, without copies."""
        shape, dtype = self.shape(first), self.dtype(first)
        if (shape, dtype) != (self.shape(second), self.dtype(second)):
            return False
        if len(shape) != 2 or dtype is None:
            return False
        one, other = (self._slice(name) for name in (first, second))
        pieces = (slice(at, at + ROWS_AT_ONCE) for at in range(0, shape[0], ROWS_AT_ONCE))
        return all(torch.equal(one[piece], other[piece]) for piece in pieces)

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, depth: slice = ALL
    ) -> Tensor:
        """A copy: the file may be replaced or cut while the model runs."""
        _, opened, stored = self._where[name]
        if rows == columns == depth == ALL:
            return opened.get_tensor(stored).clone()
        ranges = (rows, columns, depth)[: len(self.shape(name))]
        return opened.get_slice(stored)[ranges].clone(memory_format=torch.contiguous_format)

    read_stored = read


def spell_whole(names: Iterable[str]) -> Mapping[str, str]:
    """Name in the files of a whole model -> name that it has here."""
    spelled = {name: name for name in names}
    if LANGUAGE_MODEL + EMBEDDING in spelled:
        spelled = {
            name: name.removeprefix(LANGUAGE_MODEL)
            for name in spelled
            if not name.startswith(OF_PICTURES)
        }
    if BARE_EMBEDDING in spelled.values():
        spelled = {name: add_stem(bare) for name, bare in spelled.items()}
    return spelled


def add_stem(name: str) -> str:
    """The name that a tensor has in a model with a head, as in files of models without one (those
    of embeddings, which AutoModel has written) it has lost its beginning."""
    return name if name == OUTPUT else f"{STEM}{name}"
