"""Weights of a GGUF file under Hugging Face's names and in Hugging Face's order of rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from vivace.checkpoint.gguf_file import GGUFFile, TensorEntry
from vivace.checkpoint.weights import CheckpointError
from vivace.models.facts import ModelFacts

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


class GGUFWeights:
    """Dequantises on reading: float32 from blocks, the stored dtype from F32, F16 and BF16."""

    def __init__(self, file: GGUFFile, facts: ModelFacts) -> None:
        self.place = str(file.path)
        self._file = file
        self._facts = facts
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0))))
        self._gemma = facts.model_type.startswith("gemma")
        self._permuted = facts.model_type in ("llama", "mistral")
        self._stored = {self._name(name): name for name in file.tensors if name not in NOT_WEIGHTS}

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

    def read(self, name: str) -> Tensor:
        tensor = self._decoded(self._stored[name])
        if self._permuted and ".self_attn.q_proj." in name:
            return unpermuted(tensor, self._facts.heads)
        if self._permuted and ".self_attn.k_proj." in name:
            return unpermuted(tensor, self._facts.kv_heads)
        if self._gemma and name.endswith("norm.weight"):
            return tensor - 1.0
        return tensor

    def _decoded(self, stored: str) -> Tensor:
        entry = self._file.tensors[stored]
        data = self._file.data(stored)
        plain = PLAIN.get(entry.type)
        if plain is not None:
            return torch.from_numpy(data.copy()).view(plain).reshape(entry.shape)
        try:
            return torch.from_numpy(dequantized(data, entry, self._pool))
        except NotImplementedError:
            raise CheckpointError(
                f"{self.place}: tensor {stored!r} is {entry.type.name}, which cannot be read"
            ) from None


def dequantized(data: np.ndarray, entry: TensorEntry, pool: ThreadPoolExecutor) -> np.ndarray:
    """uint8 blocks -> float32 of the entry's shape, in parallel."""
    if entry.type not in BLOCKS:
        rows = data.reshape(*entry.shape[:-1], -1)
        return np.ascontiguousarray(dequantize(rows, entry.type), dtype=np.float32)
    size, nbytes = GGML_QUANT_SIZES[entry.type]
    blocks = data.reshape(-1, nbytes)
    result = np.empty((len(blocks), size), np.float32)
    share = max(1, ELEMENTS_PER_TASK // size)
    starts = range(0, len(blocks), share)

    def decode(start: int) -> None:
        end = min(start + share, len(blocks))
        for at in range(start, end, step := max(1, ELEMENTS_AT_ONCE // size)):
            piece = slice(at, min(at + step, end))
            result[piece] = BLOCKS[entry.type].dequantize_blocks(blocks[piece])

    list(pool.map(decode, starts) if len(starts) > 1 else map(decode, starts))
    return result.reshape(entry.shape)


MOST_THREADS = 16
ELEMENTS_PER_TASK = 1 << 18
ELEMENTS_AT_ONCE = 1 << 16
"""what one call decodes: small enough to stay in the cache"""
BLOCKS = {
    GGMLQuantizationType.Q4_0: quants.Q4_0,
    GGMLQuantizationType.Q4_1: quants.Q4_1,
    GGMLQuantizationType.Q5_0: quants.Q5_0,
    GGMLQuantizationType.Q5_1: quants.Q5_1,
    GGMLQuantizationType.Q8_0: quants.Q8_0,
    GGMLQuantizationType.Q2_K: quants.Q2_K,
    GGMLQuantizationType.Q3_K: quants.Q3_K,
    GGMLQuantizationType.Q4_K: quants.Q4_K,
    GGMLQuantizationType.Q5_K: quants.Q5_K,
    GGMLQuantizationType.Q6_K: quants.Q6_K,
}
"""types whose blocks gguf decodes one by one; the others go through `dequantize`"""

PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def unpermuted(tensor: Tensor, heads: int) -> Tensor:
    """llama.cpp stores q and k rows interleaved for its rotation; back to halves per head."""
    half = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, half, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
