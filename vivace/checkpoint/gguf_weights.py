"""Weights of a GGUF file under Hugging Face's names and in Hugging Face's order of rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivace.checkpoint.gguf_blocks import decode_blocks
from vivace.checkpoint.gguf_file import GGUFFile, TensorEntry
from vivace.checkpoint.gguf_types import GGML_QUANT_SIZES, GGMLQuantizationType
from vivace.checkpoint.weights import ALL, CheckpointError
from vivace.platforms.blocks import KEPT
from vivace.platforms.ops.stored import StoredBlocks

FIXED = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
GEMMA_LAYER = {
    **IN_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NOT_WEIGHTS = ("rope_freqs.weight",)
LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


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
        self._permuted = facts.model_type in ("llama", "mistral")
        self._stored = {self._name(name): name for name in file.tensors if name not in NOT_WEIGHTS}
        if len(self._stored) + sum(name in file.tensors for name in NOT_WEIGHTS) < len(
            file.tensors
        ):
            raise CheckpointError(
                f"{self.place}: two tensors have the same meaning; fetch it again"
            )

    def _name(self, stored: str) -> str:
        """The Hugging Face name of a stored tensor; unknown ones keep theirs and are left over."""
        match = LAYER.fullmatch(stored)
        if match:
            layer, part, kind = match.groups()
            table = GEMMA_LAYER if self._gemma else IN_LAYER
            return f"model.layers.{layer}.{table[part]}.{kind}" if part in table else stored
        part, _, kind = stored.rpartition(".")
        return f"{FIXED[part]}.{kind}" if part in FIXED else stored

    def names(self) -> Iterable[str]:
        return self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._stored[name]].shape

    def nbytes(self, name: str) -> int:
        return self._file.tensors[self._stored[name]].nbytes

    def label(self, name: str) -> str:
        return f"{self.place}: tensor {self._stored[name]!r}"

    def kind(self, name: str) -> str:
        return self._file.tensors[self._stored[name]].type.name

    def dtype(self, name: str) -> torch.dtype:
        return PLAIN.get(self._file.tensors[self._stored[name]].type, torch.float32)

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, depth: slice = ALL
    ) -> Tensor:
        if depth != ALL:
            return self.read(name, rows, columns)[:, :, depth].contiguous()
        entry = self._file.tensors[self._stored[name]]
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
        entry = self._file.tensors[self._stored[name]]
        if entry.type.name.lower() not in KEPT or len(entry.shape) != 2:
            return self.read(name, rows, columns)
        data = self._bytes(entry)[self._rows(name, rows)]
        try:
            return StoredBlocks(entry.type.name.lower(), data, entry.shape[1]).cut(columns)
        except ValueError as error:
            raise CheckpointError(
                f"{self.label(name)}: {error}; split the model over fewer devices, or choose "
                "another quantization of it"
            ) from None

    def _bytes(self, entry: TensorEntry) -> np.ndarray:
        """uint8[rows, bytes of a row], a view on the file"""
        data = np.frombuffer(self._file.data(entry.name), np.uint8)
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

    def _decode(self, entry: TensorEntry, rows: slice | np.ndarray) -> Tensor:
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
        self, entry: TensorEntry, rows: slice | np.ndarray, columns: slice
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

    def _decode_blocks(self, entry: TensorEntry, rows: np.ndarray) -> Tensor:
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
