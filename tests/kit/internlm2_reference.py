"""InternLM2 as its published modeling file has it, which transformers lacks: plain, without a
cache. Importing it teaches transformers' automatic classes the name.

Source: modeling_internlm2.py and configuration_internlm2.py of internlm/internlm2-7b.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import GenerationMixin, LlamaConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    ACT2FN,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)


@strict
class InternLM2Config(PreTrainedConfig):
    model_type = "internlm2"

    vocab_size: int = 103168
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    use_cache: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = False
    bias: bool = True
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        super().__post_init__(**kwargs)

    @property
    def rotary(self) -> LlamaConfig:
        """The part that says how queries and keys are turned: heads have no size of their own."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            max_position_embeddings=self.max_position_embeddings,
            rope_parameters=self.rope_parameters,
        )


class Attention(nn.Module):
    """One product makes, for each head of keys, its queries, then the key, then the value."""

    def __init__(self, config: InternLM2Config) -> None:
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        keys = config.num_key_value_heads or config.num_attention_heads
        self.groups = config.num_attention_heads // keys
        rows = (config.num_attention_heads + 2 * keys) * self.head_dim
        self.wqkv = nn.Linear(config.hidden_size, rows, bias=config.bias)
        self.wo = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.wqkv(x).view(batch, length, -1, 2 + self.groups, self.head_dim)
        q = parts[..., : self.groups, :].flatten(2, 3).transpose(1, 2)
        k, v = (parts[..., place, :].transpose(1, 2) for place in (-2, -1))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        k, v = (part.repeat_interleave(self.groups, 1) for part in (k, v))
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.mT / self.head_dim**0.5).masked_fill(~seen, float("-inf"))
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: InternLM2Config) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.w1 = nn.Linear(hidden, inner, bias=False)
        self.w3 = nn.Linear(hidden, inner, bias=False)
        self.w2 = nn.Linear(inner, hidden, bias=False)
        self.activate = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.activate(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, config: InternLM2Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class InternLM2Model(nn.Module):
    def __init__(self, config: InternLM2Config) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(config.rotary)

    def forward(self, ids: Tensor) -> Tensor:
        """ids[B, T] -> hidden[B, T, hidden]"""
        x = self.tok_embeddings(ids)
        cos, sin = self.rotary(x, torch.arange(ids.shape[1])[None])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class InternLM2ForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = InternLM2Config
    _tied_weights_keys = {"output.weight": "model.tok_embeddings.weight"}

    def __init__(self, config: InternLM2Config) -> None:
        super().__init__(config)
        self.model = InternLM2Model(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.tok_embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.output

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(logits=self.output(self.model(input_ids)))


transformers.AutoConfig.register("internlm2", InternLM2Config)
transformers.AutoModelForCausalLM.register(InternLM2Config, InternLM2ForCausalLM)
