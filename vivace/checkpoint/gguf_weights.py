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
from vivace.checkpoint.gguf_file import GGUFFile
from vivace.checkpoint.gguf_types import GGMLQuantizationType
from vivace.checkpoint.weights import CheckpointError
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

    int8 = False

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

    def read(self, name: str) -> Tensor:
        tensor = self._decode(self._stored[name])
        heads = self._interleaved_heads(name)
        if heads is not None:
            return unpermute(tensor, heads)
        if self._gemma and name.endswith("norm.weight"):
            return tensor - 1.0
        return tensor

    def read_stored(self, name: str) -> Tensor | StoredBlocks:
        """The file's own bytes, a view on it; rows are reordered as in `read`."""
        entry = self._file.tensors[self._stored[name]]
        if entry.type.name.lower() not in KEPT or len(entry.shape) != 2:
            return self.read(name)
        rows = self._bytes(entry.name).reshape(entry.shape[0], -1)
        blocks = StoredBlocks(entry.type.name.lower(), rows, entry.shape[1])
        heads = self._interleaved_heads(name)
        if heads is None:
            return blocks
        order = unpermute(torch.arange(entry.shape[0]), heads)
        return blocks.rows(order.numpy())

    def _bytes(self, stored: str) -> np.ndarray:
        """uint8[bytes], a view on the file"""
        return np.frombuffer(self._file.data(stored), np.uint8)

    def _interleaved_heads(self, name: str) -> int | None:
        """Heads of a tensor whose rows llama.cpp reordered; None where it did not."""
        if self._permuted and ".self_attn.q_proj." in name:
            return self._facts.heads
        if self._permuted and ".self_attn.k_proj." in name:
            return self._facts.kv_heads
        return None

    def _decode(self, stored: str) -> Tensor:
        entry = self._file.tensors[stored]
        data = self._bytes(stored)
        plain = PLAIN.get(entry.type)
        if plain is not None:
            return torch.from_numpy(data.copy()).view(plain).reshape(entry.shape)
        try:
            rows = data.reshape(prod(entry.shape[:-1]), -1)
            return decode_blocks(rows, entry.type, self._dtype).view(entry.shape)
        except NotImplementedError:
            raise CheckpointError(
                f"{self.place}: tensor {stored!r} is {entry.type.name}, which cannot be read"
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
