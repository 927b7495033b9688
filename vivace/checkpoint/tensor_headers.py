"""What the headers of safetensors files say of their tensors, before anything of these is read.
Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.json_files import MAX_INDEX, read_json
from vivace.checkpoint.weight_files import INDEX_FILE

STEM = "model."
MAP = "d2t"
FLOATS = ("F32", "BF16", "F16", "F64")
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


def read_draft_ids(
    folder: Path, tensors: Mapping[str, StoredTensor], vocabulary: int, whole: int
) -> tuple[int, ...]:
    """The model's ids of a head's `vocabulary`; none: they are the same. Raises SourceError."""
    if MAP not in tensors:
        if vocabulary < whole:
            raise SourceError(
                f"{folder}: the tensor {MAP!r} is missing, which says what the "
                f"{vocabulary} tokens of draft_vocab_size are; fetch the head again"
            )
        return ()
    if tensors[MAP].shape != (vocabulary,):  # before it is read: it may be of any size
        raise SourceError(
            f"{tensors[MAP].label} has the shape {list(tensors[MAP].shape)}, draft_vocab_size is "
            f"{vocabulary}; one of the two is damaged: fetch it again"
        )
    offsets = read_integers(tensors[MAP])
    ids = tuple(own + offset for own, offset in enumerate(offsets))
    if wrong := next((one for one in ids if not 0 <= one < whole), None):
        own = ids.index(wrong)
        raise SourceError(
            f"{tensors[MAP].label}: entry {own} is {offsets[own]}, which makes token {wrong} of "
            f"{whole}; it holds offsets, the model's id less the head's"
        )
    return ids


def name_head_tensors(names: Iterable[str]) -> Mapping[str, str]:
    """Name in the files of a head that drafts -> name that this has here. Some are saved as the
    body of a model, which the vocabulary's maps are no part of, and what EAGLE3 calls its one layer
    is the first one of a model to others."""
    bare = {name: name.removeprefix(STEM) for name in names}
    if f"{LAYER}hidden_norm.weight" not in bare.values():
        return bare
    return {name: one.replace(LAYER, MIDLAYER, 1) for name, one in bare.items()}


def check_shapes(
    folder: Path,
    tensors: Mapping[str, StoredTensor],
    wanted: Iterable[tuple[str, tuple[int, ...]]],
) -> None:
    """Of a draft in this folder, against what it must have. Raises SourceError."""
    for name, shape in wanted:
        if (found := tensors.get(name)) is None:
            raise SourceError(
                f"{missing_place(folder, name)}: the tensor {name!r} is missing, which its "
                f"config.json asks for, of the shape {list(shape)}; fetch the draft again, or use "
                "NGRAM"
            )
        if found.shape != shape or found.kind not in FLOATS:
            raise SourceError(
                f"{found.label} is {found.kind} of the shape {list(found.shape)}, config.json and "
                f"the model need {list(shape)} of {' or '.join(FLOATS)}; use a draft that was made "
                "for it, or fetch it again"
            )


def missing_place(folder: Path, name: str) -> Path:
    """The file that an index says a tensor is in, else the folder."""
    places = read_json(folder / INDEX_FILE, limit=MAX_INDEX).get("weight_map")
    file = places.get(name) if isinstance(places, dict) else None
    return folder / file if isinstance(file, str) else folder
