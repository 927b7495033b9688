"""What all readers of weights share: errors, and the record of what was used."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from vivace.checkpoint.fields import readable_key
from vivace.errors import CannotStart
from vivace.platforms.ops.stored import StoredBlocks

ReportProgress = Callable[[str, float], None]
"""(stage, fraction of it that is done, 0..1)"""
STAGE = "Loading weights"
IGNORABLE = ("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias")
"""buffers that old checkpoints carry and that are computed, not read"""
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
ALL = slice(None)
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""in a name: of a layer or an expert"""
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""what a weight is that no quantization owns"""


class CheckpointError(CannotStart):
    """A weight is missing, of another shape, damaged or left over; the text says which."""


class Weights(Protocol):
    """A checkpoint under Hugging Face's tensor names.

    `rows` and `columns` (and `depth`, of a third dimension) are ranges of one tensor without steps:
    only these are read.
    """

    tied: bool
    """the output layer is the embedding"""

    def has(self, name: str) -> bool: ...

    def names(self) -> Iterable[str] | None:
        """What the files have; None = whatever is asked for (a dummy)."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype | None:
        """None: one that torch does not have. Blocks count as float32."""
        ...

    def label(self, name: str) -> str:
        """The file and the name a tensor has there, for messages."""
        ...

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
        """A copy on the CPU; `shape` is that of the whole tensor. Raises CheckpointError when it
        is missing, of another shape or none of `dtypes`."""
        ...

    def take_stored(
        self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL
    ) -> Tensor | StoredBlocks:
        """As `take` of floats, but blocks stay as the file has them."""
        ...


class OpenWeights(Weights, Protocol):
    """`Weights`, and the check at the end."""

    def finish(self, claims: Collection[str]) -> None: ...


class TensorReader(Protocol):
    """One format. Names are Hugging Face's."""

    place: str
    """where the weights are, for messages"""

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype | None: ...

    def nbytes(self, name: str) -> int: ...

    def label(self, name: str) -> str:
        """The file and the name it has there, for messages."""
        ...

    def kind(self, name: str) -> str:
        """The format's own name of its type, for messages."""
        ...

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, depth: slice = ALL
    ) -> Tensor: ...

    def read_stored(
        self, name: str, rows: slice = ALL, columns: slice = ALL
    ) -> Tensor | StoredBlocks:
        """As `read`, but without decoding where the format has blocks."""
        ...


class TrackedWeights:
    """Hands out tensors with their shape checked. `tied`: the output layer is the embedding."""

    def __init__(self, reader: TensorReader, *, tied: bool, progress: ReportProgress) -> None:
        self.tied = tied
        self._reader = reader
        self._names = dict.fromkeys(sorted(reader.names()))
        """in order: mixtures have a hundred thousand, and are asked for each expert's matrices"""
        self._progress = progress
        self._total = sum(reader.nbytes(name) for name in self._names) or 1
        self.read_bytes = 0
        """of the files, handed out so far"""

    def has(self, name: str) -> bool:
        return name in self._names

    def names(self) -> Iterable[str]:
        return self._names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._reader.shape(name)

    def dtype(self, name: str) -> torch.dtype | None:
        return self._reader.dtype(name)

    def label(self, name: str) -> str:
        return self._reader.label(name)

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
        self._check(name, shape, dtypes)
        tensor = self._reader.read(name, rows, columns, depth)
        self._report(name, shape, (rows, columns, depth))
        return tensor

    def take_stored(
        self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL
    ) -> Tensor | StoredBlocks:
        self._check(name, shape, FLOATS)
        matrix = self._reader.read_stored(name, rows, columns)
        self._report(name, shape, (rows, columns))
        return matrix

    def _check(self, name: str, shape: tuple[int, ...], dtypes: Collection[torch.dtype]) -> None:
        if name not in self._names:
            raise self._missing(name)
        found = self._reader.shape(name)
        if found != shape:
            raise CheckpointError(
                f"{self._reader.label(name)} has the shape {list(found)}, the model's "
                f"configuration needs {list(shape)}; one of the two is damaged: fetch it again"
            )
        if self._reader.dtype(name) not in dtypes:
            wanted = " or ".join(str(one).removeprefix("torch.") for one in dtypes)
            raise CheckpointError(
                f"{self._reader.label(name)} is {self._reader.kind(name)}, which is not read as "
                f"{wanted}: its quantization is not supported, or config.json does not say it"
            )

    def _missing(self, name: str) -> CheckpointError:
        """Says what stands in its place: other tools store matrices in parts of other names."""
        stem = name.removesuffix("weight").removesuffix("bias")
        beside = sorted(one for one in self._names if one.startswith(stem))
        advice = (
            "fetch it again; there is, for example, "
            f"{readable_key(min(map(self._stored_name, self._names), default=''))}"
        )
        if beside and name.endswith(".bias"):
            key = "mlp_bias" if ".mlp." in name else "attention_bias"
            advice = f"its configuration asks for it (model_type or {key}): correct it or {advice}"
        elif beside:
            names = ", ".join(readable_key(one.removeprefix(stem)) for one in beside[:4])
            advice = f"in its place is {names}: quantized weights of a kind that is not read"
        elif name == OUTPUT:
            advice = (
                "if the model shares it with its embeddings, give --json-model-override-args "
                """'{"tie_word_embeddings": true}'; otherwise fetch the model again"""
            )
        called = self._guess_stored_name(name)
        return CheckpointError(f"{self._reader.place}: the tensor {called!r} is missing; {advice}")

    def _guess_stored_name(self, name: str) -> str:
        """Of a tensor that the files lack: as they call the same of another layer, or one beside
        it; what it is called here where there is neither."""
        stem, _, last = name.rpartition(".")
        alike, numbers = NUMBER.sub("0", name), iter(NUMBER.findall(name))
        for other in self._names:
            if NUMBER.sub("0", other) == alike:
                return NUMBER.sub(lambda one: next(numbers, one[0]), self._stored_name(other))
        for other in self._names:
            own, _, kind = self._stored_name(other).rpartition(".")
            if other.rpartition(".") == (stem, ".", kind):
                return f"{own}.{last}"
        return name

    def _stored_name(self, name: str) -> str:
        return self._reader.label(name).rpartition(": tensor ")[2].strip("'")

    def _report(self, name: str, shape: tuple[int, ...], ranges: tuple[slice, ...]) -> None:
        share = prod(
            len(range(size)[part]) / size for size, part in zip(shape, ranges, strict=False) if size
        )
        self.read_bytes += int(self._reader.nbytes(name) * share)
        self._progress(STAGE, min(self.read_bytes / self._total, 1.0))

    def finish(self, claims: Collection[str]) -> None:
        """Raises CheckpointError when there are tensors that nothing of the model claims, on
        whatever rank it is."""
        left = sorted(name for name in self._names.keys() - claims if not name.endswith(IGNORABLE))
        if left:
            names = [readable_key(name) for name in left]
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise CheckpointError(
                f"{self._reader.place}: the model has no place for {', '.join(names[:4])}{more}; "
                "the checkpoint is of another architecture than its configuration says"
            )
        self._progress(STAGE, 1.0)
