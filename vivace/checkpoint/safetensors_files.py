"""Reading safetensors checkpoints, single or sharded, mapped from disk."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vivace.checkpoint.weights import CheckpointError

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class SafetensorsFiles:
    """Tensors of one or more files. Raises CheckpointError on a damaged or doubled one."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._stack = ExitStack()
        self._where: dict[str, tuple[Path, Any]] = {}
        paths = list(files)
        self.place = str(paths[0].parent if len(paths) > 1 else paths[0])
        for path in paths:
            self._add(path)

    def _add(self, path: Path) -> None:
        try:
            opened = self._stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path}: damaged or truncated safetensors file ({error}); fetch it again"
            ) from None
        for name in opened.keys():  # noqa: SIM118
            if name in self._where:
                raise CheckpointError(f"{path}: {name!r} is also in {self._where[name][0]}")
            self._where[name] = (path, opened)

    def names(self) -> Iterable[str]:
        return self._where

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._where[name][1].get_slice(name).get_shape())

    def nbytes(self, name: str) -> int:
        kind = self._where[name][1].get_slice(name).get_dtype()
        return prod(self.shape(name)) * BYTES.get(str(kind), 1)

    def stored(self, name: str) -> Tensor:
        return self.read(name)

    def read(self, name: str) -> Tensor:
        path, opened = self._where[name]
        kind = str(opened.get_slice(name).get_dtype())
        if kind not in BYTES:
            raise CheckpointError(
                f"{path}: tensor {name!r} is {kind}; F32, F16 and BF16 weights are read in this "
                "version: use an unquantised checkpoint or a GGUF file"
            )
        # A copy: the file may be replaced or cut while the model runs.
        return opened.get_tensor(name).clone()
