"""What the headers of safetensors files say of their tensors, before anything of these is read.
Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vivace.checkpoint.errors import SourceError

STEM = "model."
LAYER, MIDLAYER = "layers.0.", "midlayer."


@dataclass(frozen=True)
class StoredTensor:
    file: Path
    name: str
    """that it has there"""
    shape: tuple[int, ...]
    kind: str
    """safetensors' name of its type"""

    @property
    def label(self) -> str:
        return f"{self.file}: tensor {self.name!r}"


def read_headers(files: Iterable[Path], stems: tuple[str, ...] = ("",)) -> dict[str, StoredTensor]:
    """By their names, which begin with one of `stems`. Raises SourceError for a file that is
    damaged or cut."""
    found = dict[str, StoredTensor]()
    for file in files:
        try:
            found |= {each.name: each for each in read_one(file, stems)}
        except (SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise SourceError(
                f"{file}: damaged or truncated safetensors file ({reason}); fetch it again"
            ) from None
    return found


def read_one(file: Path, stems: tuple[str, ...]) -> Iterator[StoredTensor]:
    opened: Any = safe_open
    with opened(file, framework="np") as tensors:
        for name in filter(lambda name: name.startswith(stems), tensors.keys()):
            part = tensors.get_slice(name)
            yield StoredTensor(file, name, tuple(part.get_shape()), str(part.get_dtype()))


def read_integers(tensor: StoredTensor) -> list[int]:
    """Raises SourceError for a list of anything else."""
    if tensor.kind not in ("I64", "I32") or len(tensor.shape) != 1:
        raise SourceError(
            f"{tensor.label} is {tensor.kind} {list(tensor.shape)}; it must be a list of integers"
        )
    opened: Any = safe_open
    with opened(tensor.file, framework="np") as tensors:
        return tensors.get_tensor(tensor.name).tolist()


def name_head_tensors(names: Iterable[str]) -> Mapping[str, str]:
    """Name in the files of a head that drafts -> name that this has here. Some are saved as the
    body of a model, which the vocabulary's maps are no part of, and what EAGLE3 calls its one layer
    is the first one of a model to others."""
    bare = {name: name.removeprefix(STEM) for name in names}
    if f"{LAYER}hidden_norm.weight" not in bare.values():
        return bare
    return {name: one.replace(LAYER, MIDLAYER, 1) for name, one in bare.items()}
