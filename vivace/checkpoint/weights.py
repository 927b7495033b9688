"""What all readers of weights share: errors, and the record of what was used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor

from vivace.checkpoint.fields import readable_key
from vivace.errors import CannotStart
from vivace.platforms.ops.stored import Int8Rows, StoredBlocks

ReportProgress = Callable[[str, float], None]
"""(stage, fraction of it that is done, 0..1)"""
STAGE = "Loading weights"
IGNORABLE = ("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias")
"""buffers that old checkpoints carry and that are computed, not read"""
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


class CheckpointError(CannotStart):
    """A weight is missing, of another shape, damaged or left over; the text says which."""


class TensorReader(Protocol):
    """One format. Names are Hugging Face's."""

    place: str
    """where the weights are, for messages"""
    int8: bool
    """some matrices are stored as int8 with a scale for each row"""

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def nbytes(self, name: str) -> int: ...

    def label(self, name: str) -> str:
        """The file and the name it has there, for messages."""
        ...

    def read(self, name: str) -> Tensor: ...

    def read_stored(self, name: str) -> Tensor | StoredBlocks | Int8Rows:
        """As `read`, but without decoding where the format has blocks or int8."""
        ...


class TrackedWeights:
    """Hands out tensors with their shape checked, and knows which nobody asked for.

    `tied`: the output layer is the embedding; a copy of it that the files have is left out.
    """

    def __init__(self, reader: TensorReader, *, tied: bool, progress: ReportProgress) -> None:
        self._reader = reader
        self.int8 = reader.int8
        self.tied = tied
        self._names = set(reader.names())
        self._unused = {name for name in self._names if not ignorable(name, tied)}
        self._progress = progress
        self._total = sum(reader.nbytes(name) for name in self._unused) or 1
        self._done = 0

    def has(self, name: str) -> bool:
        return name in self._names

    def names(self) -> Iterable[str]:
        return sorted(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._reader.shape(name)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._check(name, shape)
        tensor = self._reader.read(name)
        self._report(name)
        return tensor

    def take_stored(self, name: str, shape: tuple[int, ...]) -> Tensor | StoredBlocks | Int8Rows:
        self._check(name, shape)
        matrix = self._reader.read_stored(name)
        self._report(name)
        return matrix

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._names:
            raise self._missing(name)
        found = self._reader.shape(name)
        if found != shape:
            raise CheckpointError(
                f"{self._reader.label(name)} has the shape {list(found)}, the model's "
                f"configuration needs {list(shape)}; one of the two is damaged: fetch it again"
            )

    def _missing(self, name: str) -> CheckpointError:
        """Says what stands in its place: other tools store matrices in parts of other names."""
        stem = name.rpartition(".")[0] + "."
        beside = sorted(one for one in self._names if one.startswith(stem))
        advice = (
            f"fetch it again; there is, for example, {readable_key(min(self._names, default=''))}"
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
        return CheckpointError(f"{self._reader.place}: the tensor {name!r} is missing; {advice}")

    def _report(self, name: str) -> None:
        self._unused.discard(name)
        self._done += self._reader.nbytes(name)
        self._progress(STAGE, min(self._done / self._total, 1.0))

    def finish(self) -> None:
        """Raises CheckpointError when tensors are left that this architecture has no place for."""
        if self._unused:
            names = [readable_key(name) for name in sorted(self._unused)]
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise CheckpointError(
                f"{self._reader.place}: the model has no place for {', '.join(names[:4])}{more}; "
                "the checkpoint is of another architecture than its configuration says"
            )


def ignorable(name: str, tied: bool) -> bool:
    return name.endswith(IGNORABLE) or (tied and name == OUTPUT)
