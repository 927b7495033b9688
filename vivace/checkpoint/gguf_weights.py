"""Weights of a GGUF file under Hugging Face's names and in Hugging Face's order of rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
MIXTURE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
OF_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
"""[experts, rows, columns] of a layer; {}: the expert"""
MIXTRALS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
TABLES = {
    "gemma2": GEMMA_LAYER,
    "gemma3_text": GEMMA_LAYER,
    "mixtral": {**IN_LAYER, **MIXTRALS},
    "qwen2_moe": {**IN_LAYER, **MIXTURE, **OF_EXPERTS},
    "qwen3_moe": {**IN_LAYER, **MIXTURE, **OF_EXPERTS},
}
"""model_type -> names in a layer; of others IN_LAYER"""
ONE_ROW = ".ffn_gate_inp_shexp.weight"
"""stored as a vector"""
NOT_WEIGHTS = ("rope_freqs.weight",)
LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True)
class HeldTensor:
    """A tensor of the file, or what one expert has of it. `shape`, `nbytes`: of that."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    nbytes: int
    expert: int | None = None


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
        self._table = TABLES.get(facts.model_type, IN_LAYER)
        self._held: dict[str, HeldTensor] = {}
        for stored, entry in file.tensors.items():
            if stored not in NOT_WEIGHTS:
                self._hold(self._name(stored), entry)

    def _hold(self, name: str, entry: TensorEntry) -> None:
        shape, several = entry.shape, "{}" in name
        if several and len(shape) != 3:
            raise CheckpointError(f"{self.place}: {entry.name} is no tensor of experts' matrices")
        if entry.name.endswith(ONE_ROW) and len(shape) == 1:
            shape = (1, *shape)
        one = HeldTensor(entry.name, entry.type, shape, entry.nbytes)
        found = {name: one}
        if several:
            count = shape[0]
            found = {
                name.format(expert): replace(
                    one, shape=shape[1:], nbytes=entry.nbytes // count, expert=expert
                )
                for expert in range(count)
            }
        if not found.keys().isdisjoint(self._held):
            raise CheckpointError(
                f"{self.place}: two tensors have the same meaning; fetch it again"
            )
        self._held |= found

    def _name(self, stored: str) -> str:
        """The Hugging Face name of a stored tensor; unknown ones keep theirs and are left over."""
        match = LAYER.fullmatch(stored)
        if match:
            layer, part, kind = match.groups()
            inner = self._table.get(part)
            return f"model.layers.{layer}.{inner}.{kind}" if inner else stored
        part, _, kind = stored.rpartition(".")
        return f"{FIXED[part]}.{kind}" if part in FIXED else stored

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
