"""The part of docs/models.md about models that answer with numbers."""

from __future__ import annotations

from vivace.models.pooling.kinds import ENCODERS

DECODERS = """## Models that answer with numbers

Vectors and scores of texts; [pooling.md](pooling.md) says which routes have them. Decoders of the
table above with `--is-embedding`, and these, which need no flag. Weights are safetensors; of
encoders, and of decoders that make vectors, GGUF files, too (`general.architecture` bert;
`pooling_type` says what is pooled). Of a
decoder, layers, kernels, quantization and ranks are those of its family; encoders keep no KV,
compute each text in one step, and attend by torch's operations. Ranks divide their heads and
MLPs (`--tp-size`), stages their layers (`--pp-size`).

In the names of decoders' classes `ForCausalLM` is replaced by `ForSequenceClassification` (its
`score` makes a number for each label of the last token's state) or `ForRewardModel` (two layers
make one number of it, of InternLM2 one): LlamaForSequenceClassification, Qwen2ForRewardModel,
InternLM2ForRewardModel ... `Qwen2ForProcessRewardModel` (Qwen2.5-Math-PRM) has two numbers for each
step of a text, of the state of the token behind it.

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
