"""Names of a GGUF file's tensors -> Hugging Face's, by family."""

from __future__ import annotations

import re

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
OF_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
"""[experts, rows, columns] of a layer, biases [experts, rows]; {}: the expert"""
QWEN_MIXTURE = {
    **IN_LAYER,
    **OF_EXPERTS,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTRAL = {
    **IN_LAYER,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
GROUPED_MIXTURE = {
    **IN_LAYER,
    **OF_EXPERTS,
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
LATENT_MIXTURE = {
    **GROUPED_MIXTURE,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
GPT_OSS = {
    **IN_LAYER,
    **OF_EXPERTS,
    "attn_sinks.weight": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
LLAMA4 = {
    **{part: name.replace("mlp.", "feed_forward.") for part, name in IN_LAYER.items()},
    **{part: name.replace("mlp.", "feed_forward.") for part, name in OF_EXPERTS.items()},
    "ffn_gate_inp": "feed_forward.router",
    "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
    "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
    "ffn_down_shexp": "feed_forward.shared_expert.down_proj",
}
ENCODER_FIXED = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "cls": "classifier.dense",
    "cls.output": "classifier.out_proj",
}
ENCODER_LAYER = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
NOMIC_LAYER = {
    **ENCODER_LAYER,
    "attn_qkv": "attention.self.qkv",
    "ffn_gate": "intermediate.gate",
    "ffn_up": "intermediate.up",
}
TABLES = {
    "nomic_bert": NOMIC_LAYER,
    "bert": ENCODER_LAYER,
    "gemma2": GEMMA_LAYER,
    "gemma3_text": GEMMA_LAYER,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN_MIXTURE,
    "qwen3_moe": QWEN_MIXTURE,
    "deepseek_v2": LATENT_MIXTURE,
    "deepseek_v3": LATENT_MIXTURE,
    "glm4_moe": {**GROUPED_MIXTURE, "post_attention_norm": "post_attention_layernorm"},
    "gpt_oss": GPT_OSS,
    "llama4_text": LLAMA4,
}
"""model_type -> names in a layer, of a tensor or of its part before the last dot; of others
IN_LAYER"""
LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
OF_EXPERT = re.compile(r"(ffn_(?:gate|up|down))\.(\d{1,5})")
"""of older files, which have a tensor for each expert"""
DRAFTS = "nextn."
"""in layers behind the last one"""


class TensorNames:
    def __init__(self, model_type: str) -> None:
        encoder = model_type in ("bert", "nomic_bert")
        self._table = TABLES.get(model_type, IN_LAYER)
        self._fixed = ENCODER_FIXED if encoder else FIXED
        self._layers = "encoder.layer" if encoder else "model.layers"

    def find(self, stored: str) -> str:
        """The Hugging Face name of a stored tensor, with {} where it has all experts; unknown ones
        keep theirs and are left over."""
        match = LAYER.fullmatch(stored)
        if match is None:
            part, _, kind = stored.rpartition(".")
            return f"{self._fixed[part]}.{kind}" if part in self._fixed else stored
        layer, part, kind = match.groups()
        inner = self._find_inner(part, kind)
        return stored if inner is None else f"{self._layers}.{layer}.{inner}"

    def _find_inner(self, part: str, kind: str) -> str | None:
        table = self._table
        if whole := table.get(f"{part}.{kind}"):
            return whole
        if part.startswith(DRAFTS):
            return f"{part}.{kind}"
        one = OF_EXPERT.fullmatch(part)
        if one is not None and (experts := table.get(f"{one[1]}_exps")):
            return f"{experts.format(int(one[2]))}.{kind}"
        return f"{inner}.{kind}" if (inner := table.get(part)) else None
