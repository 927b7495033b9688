"""The part of docs/models.md about models that answer with numbers."""

from __future__ import annotations

from vivace.models.pooling.kinds import ENCODERS

DECODERS = """## Models that answer with numbers

Vectors and scores of texts; [pooling.md](pooling.md) says which routes have them. These need no
flag; decoders of the table above make vectors with `--is-embedding`.

Weights are safetensors. Encoders, and decoders that make vectors, may be GGUF files, too
(`general.architecture` is `bert` or `nomic-bert`; `pooling_type` says what is pooled).
`NomicBertModel` is read as transformers has it and as Nomic's own class has; without its mixtures
of experts, and no further than the positions that it was trained with.

A decoder has the layers, kernels, quantization and ranks of its family. An encoder keeps no KV,
computes each text in one step, and attends by torch's operations. Ranks divide its heads and MLPs
(`--tp-size`), stages its layers (`--pp-size`).

| class of a decoder | answers with |
|---|---|
| `...ForSequenceClassification` | a number for each label, of the last token's state |
| `...ForRewardModel` | one number of it, by two layers (of InternLM2 by one) |
| `Qwen2ForProcessRewardModel` | two numbers for each step, of the state of the token that ends it |

`...` is a class of the table above without `ForCausalLM`: LlamaForSequenceClassification,
Qwen2ForRewardModel, InternLM2ForRewardModel. Qwen2.5-Math-PRM is a process reward model.

| encoder | answers with |
|---|---|
"""
VECTORS = "a vector: the first token, the mean or the last one"
CLASSES = "a number for each label; one label: a cross-encoder of pairs"


def pooled_families() -> str:
    rows = [
        f"| `{name}` | {CLASSES if kind.classifies else VECTORS} |\n"
        for name, kind in ENCODERS.items()
    ]
    return DECODERS + "".join(rows)
