"""Weights of a GGUF file under Hugging Face's names and in Hugging Face's order of rows."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.checkpoint.gguf_blocks import decode_blocks
from vivace.checkpoint.gguf_file import GGUFFile
from vivace.checkpoint.gguf_held import HeldTensor, heads_of_rows, hold, join_latents
from vivace.checkpoint.gguf_names import TensorNames
from vivace.checkpoint.gguf_types import GGML_QUANT_SIZES, GGMLQuantizationType
from vivace.checkpoint.weights import ALL, CheckpointError
from vivace.platforms.blocks import KEPT
from vivace.platforms.ops.stored import StoredBlocks

NOT_WEIGHTS = ("rope_freqs.weight",)
MOST_HELD = 1 << 18
"""the largest mixtures have 2 ** 17 matrices of experts; a file can name very many small ones"""


class StoredLayout(Protocol):
    """What of a model's facts decides how its weights are stored (`models.facts.ModelFacts`)."""

    @property
    def model_type(self) -> str: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def tied(self) -> bool: ...


class GGUFWeights:
    """Dequantizes on reading: blocks become `dtype`; F32, F16 and BF16 stay what they are."""

    def __init__(
        self, file: GGUFFile, facts: StoredLayout, dtype: torch.dtype = torch.float32
    ) -> None:
        self.place = str(file.path)
        self._file = file
        self._facts = facts
        self._dtype = dtype
        self._gemma = facts.model_type.startswith("gemma")
        self._permuted = facts.model_type in ("llama", "mistral", "mixtral")
        self._held = self._hold(TensorNames(facts.model_type))

    def _hold(self, names: TensorNames) -> dict[str, HeldTensor]:
        held: dict[str, HeldTensor] = {}
        for stored, entry in self._file.tensors.items():
            if stored in NOT_WEIGHTS:
                continue
            found = hold(names.find(stored), entry, self.place, MOST_HELD - len(held))
            if not found.keys().isdisjoint(held):
                raise CheckpointError(
                    f"{self.place}: two tensors have the same meaning; fetch it again"
                )
            held |= found
        return join_latents(held, self.place)

    def names(self) -> Iterable[str]:
        return self._held

    def shape(self, name: str) -> tuple[int, ...]:
        return self._held[name].shape

    def nbytes(self, name: str) -> int:
        return self._held[name].nbytes

    def label(self, name: str) -> str:
        return f"{self.place}: tensor {self._held[name].name!r}"

    def kind(self, name: str) -> str:
        return self._held[name].type.name

    def dtype(self, name: str) -> torch.dtype:
        return PLAIN.get(self._held[name].type, torch.float32)

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, depth: slice = ALL
    ) -> Tensor:
        if depth != ALL:
            return self.read(name, rows, columns)[:, :, depth].contiguous()
        entry = self._held[name]
        if entry.parts is not None:
            return self._read_joined(entry, heads_of_rows(entry, rows))[:, columns].contiguous()
        if columns != ALL and len(entry.shape) > 1:
            tensor = self._decode_columns(entry, self._rows(name, rows), columns)
        else:
            tensor = self._decode(entry, self._rows(name, rows))
        if self._gemma and name.endswith("norm.weight"):
            return tensor - 1.0
        return tensor

    def read_stored(
        self, name: str, rows: slice = ALL, columns: slice = ALL
    ) -> Tensor | StoredBlocks:
        """The file's own bytes, a view on it where rows are not reordered."""
        entry = self._held[name]
        kept = entry.type.name.lower() in KEPT and entry.parts is None
        if not kept or len(entry.shape) != 2:
            return self.read(name, rows, columns)
        data = self._bytes(entry)[self._rows(name, rows)]
        try:
            return StoredBlocks(entry.type.name.lower(), data, entry.shape[1]).cut(columns)
        except ValueError as error:
            raise CheckpointError(
                f"{self.label(name)}: {error}; split the model over fewer devices, or choose "
                "another quantization of it"
            ) from None

    def _read_joined(self, entry: HeldTensor, heads: slice) -> Tensor:
        """[rows of these heads, latent]: of each its keys' and then its values'"""
        assert entry.parts is not None
        keys, values = (self._decode(part, heads).float() for part in entry.parts)
        return torch.cat((keys.mT, values), 1).flatten(0, 1)

    def _bytes(self, entry: HeldTensor) -> np.ndarray:
        """uint8[rows, bytes of a row], a view on the file"""
        data = np.frombuffer(self._file.data(entry.name), np.uint8)
        if entry.expert is not None:
            data = data[entry.expert * entry.nbytes : (entry.expert + 1) * entry.nbytes]
        return data.reshape(entry.shape[0] if entry.shape else 1, -1)

    def _rows(self, name: str, rows: slice) -> slice | np.ndarray:
        """Where the file has these rows."""
        heads = self._interleaved_heads(name)
        if heads is None:
            return rows
        return unpermute(torch.arange(self.shape(name)[0]), heads)[rows].numpy()

    def _interleaved_heads(self, name: str) -> int | None:
        """Heads of a tensor whose rows llama.cpp reordered; None where it did not."""
        if self._permuted and ".self_attn.q_proj." in name:
            return self._facts.heads
        if self._permuted and ".self_attn.k_proj." in name:
            return self._facts.kv_heads
        return None

    def _decode(self, entry: HeldTensor, rows: slice | np.ndarray) -> Tensor:
        inner = entry.shape[1:]
        plain = PLAIN.get(entry.type)
        if plain is not None:
            data = self._bytes(entry)[rows]
            return torch.from_numpy(data.copy()).view(plain).reshape(-1, *inner)
        if not inner:  # blocks along the only dimension
            return self._decode_blocks(entry, self._bytes(entry).reshape(1, -1)).view(-1)[rows]
        data = self._bytes(entry)[rows]
        per_row = data.reshape(len(data) * prod(inner[:-1]), -1)
        return self._decode_blocks(entry, per_row).view(len(data), *inner)

    def _decode_columns(
        self, entry: HeldTensor, rows: slice | np.ndarray, columns: slice
    ) -> Tensor:
        """Of blocks those alone that have these columns; [rows, columns, ...]"""
        size, nbytes = GGML_QUANT_SIZES[entry.type]
        start, stop, _ = columns.indices(entry.shape[1])
        if len(entry.shape) != 2:
            return self._decode(entry, rows)[:, columns].contiguous()
        first, last = start // size, -(-stop // size)
        data = self._bytes(entry)[rows][:, first * nbytes : last * nbytes]
        plain = PLAIN.get(entry.type)
        if plain is not None:
            return torch.from_numpy(data.copy()).view(plain)
        whole = self._decode_blocks(entry, np.ascontiguousarray(data))
        return whole[:, start - first * size : stop - first * size].contiguous()

    def _decode_blocks(self, entry: HeldTensor, rows: np.ndarray) -> Tensor:
        try:
            return decode_blocks(rows, entry.type, self._dtype)
        except NotImplementedError:
            raise CheckpointError(
                f"{self.place}: tensor {entry.name!r} is {entry.type.name}, which cannot be read"
            ) from None


PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """llama.cpp stores q and k rows interleaved for its rotation; back to halves per head."""
    half = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, half, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
