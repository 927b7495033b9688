"""Toy checkpoints of every family with random weights, made by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from internlm2_reference import InternLM2Config
from torch import Tensor

VOCABULARY = 96
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}
LATENT = GROUPED | {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
DEEPSEEK = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
"""settings of "DeepseekV3": latents, groups of experts, a shared one, a dense layer"""


def config_class(kind: str) -> Any:
    """Of transformers, or of a model that it lacks."""
    return InternLM2Config if kind == "InternLM2" else getattr(transformers, f"{kind}Config")


def make(kind: str, folder: Path, **settings: Any) -> Any:
    """Save a random model of transformers' class family `kind` ("Llama"); returns it, in eval."""
    torch.manual_seed(len(kind))
    config = config_class(kind)(**{**SHAPE, **settings})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    scramble(model)
    model.save_pretrained(folder)
    return model.eval()


def scramble(model: Any) -> None:
    """Weights large enough that every layer, norm and bias changes the logits."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.add_(noise * 0.2)
            else:
                fan = 1.0 if "embed" in name else weight.shape[1] ** -0.5
                weight.copy_(noise * fan)
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # as large as differences of scores
                bias.add_(torch.randn(bias.shape, generator=generator) * 0.2)


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()


def reference(model: Any, ids: list[int]) -> Tensor:
    """transformers' logits[count, vocabulary] for one sequence computed in one piece."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
