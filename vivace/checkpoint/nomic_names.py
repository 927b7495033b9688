"""Nomic's encoders under the names that BERT has: in files of Nomic's own class queries, keys and
values are one tensor; transformers' have three."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vivace.checkpoint.grouped_projections import ProjectionNames

FUSED = ProjectionNames(
    "attention.self.qkv", tuple(f"attention.self.{part}" for part in ("query", "key", "value"))
)
LAYER = "encoder.layer."
INSIDE = {
    "attn.Wqkv.": f"{FUSED.fused}.",
    "attn.out_proj.": "attention.output.dense.",
    "norm1.": "attention.output.LayerNorm.",
    "norm2.": "output.LayerNorm.",
    "mlp.fc11.": "intermediate.up.",
    "mlp.fc12.": "intermediate.gate.",
    "mlp.fc2.": "output.dense.",
    "self_attn.q_proj.": "attention.self.query.",
    "self_attn.k_proj.": "attention.self.key.",
    "self_attn.v_proj.": "attention.self.value.",
    "self_attn.o_proj.": "attention.output.dense.",
    "post_attention_layernorm.": "attention.output.LayerNorm.",
    "post_mlp_layernorm.": "output.LayerNorm.",
    "mlp.up_proj.": "intermediate.up.",
    "mlp.gate_proj.": "intermediate.gate.",
    "mlp.down_proj.": "output.dense.",
}
"""of a layer, in either's files"""
NORM = "emb_ln."


def spell_nomic(names: Iterable[str]) -> Mapping[str, str]:
    """Name in the files -> BERT's, with `FUSED` in the place of three projections."""
    return {name: spell(name) for name in names}


def spell(name: str) -> str:
    found = name.removeprefix("nomic_bert.")
    if found.startswith(NORM):
        return "embeddings.LayerNorm." + found.removeprefix(NORM)
    for begin in ("encoder.layers.", "layers."):
        if found.startswith(begin):
            number, _, inner = found.removeprefix(begin).partition(".")
            for theirs, ours in INSIDE.items():
                if inner.startswith(theirs):
                    inner = ours + inner.removeprefix(theirs)
                    break
            return f"{LAYER}{number}.{inner}"
    return found
