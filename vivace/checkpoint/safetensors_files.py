"""Reading safetensors checkpoints, single or sharded, mapped from disk."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vivace.checkpoint.fields import readable_key
from vivace.checkpoint.weights import EMBEDDING, OUTPUT, CheckpointError
from vivace.platforms.ops.stored import Int8Rows

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
ROWS_AT_ONCE = 4096
STEM = "model."
BARE_EMBEDDING = EMBEDDING.removeprefix(STEM)
INT8, SCALE = "I8", "_scale"
"""a matrix `x.weight` of int8 has one scale for each row in `x.weight_scale`"""


class SafetensorsFiles:
    """Tensors of one or more files. Raises CheckpointError on a damaged or doubled one.

    A matrix of int8 and its scales are one tensor, under the matrix's name.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._stack = ExitStack()
        self._where: dict[str, tuple[Path, Any, str]] = {}
        """name -> file, the file opened, the name that it has there"""
        paths = list(files)
        self.place = str(paths[0].parent if len(paths) > 1 else paths[0])
        for path in paths:
            self._add(path)
        if BARE_EMBEDDING in self._where:
            self._where = {add_stem(name): where for name, where in self._where.items()}
        self._scales = {name + SCALE for name in self._where if self._kind(name) == INT8}
        self.int8 = bool(self._scales)

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
        return self._where.keys() - self._scales

    def _kind(self, name: str) -> str:
        return str(self._slice(name).get_dtype())

    def _slice(self, name: str) -> Any:
        _, opened, stored = self._where[name]
        return opened.get_slice(stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def nbytes(self, name: str) -> int:
        return prod(self.shape(name)) * BYTES.get(self._kind(name), 1)

    def label(self, name: str) -> str:
        path, _, stored = self._where[name]
        return f"{path}: tensor {stored!r}"

    def same(self, first: str, second: str) -> bool:
        """Whether two matrices have the same numbers; read in pieces, without copies."""
        shape, kind = self.shape(first), self._kind(first)
        if (shape, kind) != (self.shape(second), self._kind(second)):
            return False
        if len(shape) != 2 or kind not in BYTES:
            return False
        one, other = (self._slice(name) for name in (first, second))
        pieces = (slice(at, at + ROWS_AT_ONCE) for at in range(0, shape[0], ROWS_AT_ONCE))
        return all(torch.equal(one[piece], other[piece]) for piece in pieces)

    def read_stored(self, name: str) -> Tensor | Int8Rows:
        return self._int8_rows(name) if self._kind(name) == INT8 else self.read(name)

    def read(self, name: str) -> Tensor:
        kind = self._kind(name)
        if kind == INT8:
            return self._int8_rows(name).dequantize()
        if kind not in BYTES:
            raise CheckpointError(
                f"{self._where[name][0]}: tensor {name!r} is {kind}, which is not supported yet; "
                "use F32, F16, BF16 or int8 weights, or a GGUF file"
            )
        return self._copy(name)

    def _int8_rows(self, name: str) -> Int8Rows:
        path, shape = self._where[name][0], self.shape(name)
        scale = name + SCALE
        if scale not in self._where or self._kind(scale) not in BYTES:
            raise CheckpointError(f"{path}: {name!r} is int8 and has no {scale!r} of floats")
        found = self.shape(scale)
        if len(shape) != 2 or found not in ((shape[0],), (shape[0], 1)):
            raise CheckpointError(
                f"{path}: {scale!r} has the shape {list(found)}; int8 is read with one scale for "
                f"each row of {name!r}, which has the shape {list(shape)}"
            )
        scales = self._copy(scale).float().flatten()
        if not bool(scales.isfinite().all()):
            raise CheckpointError(f"{path}: {scale!r} has infinite or undefined scales")
        return Int8Rows(self._copy(name).contiguous(), scales)

    def _copy(self, name: str) -> Tensor:
        _, opened, stored = self._where[name]
        # A copy: the file may be replaced or cut while the model runs.
        return opened.get_tensor(stored).clone()


def add_stem(name: str) -> str:
    """The name that a tensor has in a model with a head, as in files of models without one (those
    of embeddings, which AutoModel has written) it has lost its beginning."""
    return name if name == OUTPUT else f"{STEM}{name}"
