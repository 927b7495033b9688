"""Toy models of embeddings, laid out as sentence-transformers lays Qwen3-Embedding out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import toy_models
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from vivace.frontend.tokenizer_core import byte_alphabet

END = 256
"""appended to every text by the tokenizer's post-processor"""
SWITCHES = {
    "last": "pooling_mode_lasttoken",
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
}


def write_embedding_toy(
    folder: Path, pooling: str | None = "last", *, normalize: bool = True, **settings: Any
) -> Any:
    """A random Qwen3 with a byte tokenizer; `pooling` None: without the files that say it. Returns
    transformers' model."""
    model = toy_models.make("Qwen3", folder, **{"vocab_size": 260, "head_dim": 16, **settings})
    write_tokenizer(folder)
    if pooling is not None:
        write_modules(folder, pooling, normalize)
    return model


def write_modules(folder: Path, pooling: str, normalize: bool, hidden: int = 96) -> None:
    modules = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    if normalize:
        modules.append({"path": "2_Normalize", "type": "Normalize"})
    for index, module in enumerate(modules):
        module |= {"idx": index, "name": str(index)}
        module["type"] = f"sentence_transformers.models.{module['type']}"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    switches = {key: name == pooling for name, key in SWITCHES.items()}
    config = {"word_embedding_dimension": hidden, **switches, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def write_tokenizer(folder: Path) -> None:
    """Every byte is a token; each text ends with END."""
    core = Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<end>", "<s>"])
    core.post_processor = processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", END)]
    )
    (folder / "tokenizer.json").write_text(core.to_str(), "utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def reference_states(model: Any, ids: list[int]) -> torch.Tensor:
    """transformers' hidden states [tokens, hidden] behind the last norm."""
    with torch.inference_mode():
        return model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]


def reference_embedding(
    model: Any, ids: list[int], pooling: str, *, normalize: bool = True, dimensions: int = 0
) -> torch.Tensor:
    """The definition, over transformers' own forward pass."""
    states = reference_states(model, ids).double()
    pooled = {"last": states[-1], "mean": states.mean(0), "cls": states[0]}[pooling]
    pooled = pooled[: dimensions or None]
    return (pooled / pooled.norm() if normalize else pooled).float()
