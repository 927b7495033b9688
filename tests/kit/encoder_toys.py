"""Toy models that answer with numbers: encoders with their tokenizers, and decoders with heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from toy_models import SHAPE, scramble

WORDS = "the sea is wide and sky high a of how ten ##s ##er , . ? why not no yes fish bird"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENCODER = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 70,
}


def write_encoder(folder: Path, name: str, **settings: Any) -> Any:
    """A random model of transformers' class `name`, with a tokenizer; returns it, in eval."""
    family = name.removesuffix("Model").removesuffix("ForSequenceClassification")
    like_bert = family in ("Bert", "NomicBert")
    count = (write_wordpiece if like_bert else write_unigram)(folder)
    config = {**ENCODER, "vocab_size": count, "pad_token_id": 0 if like_bert else 1}
    types = {} if like_bert else {"type_vocab_size": 1}
    return write(folder, name, f"{family}Config", {**config, **types, **settings})


OF_NOMIC = {
    "embeddings.LayerNorm.": "emb_ln.",
    "layers.": "encoder.layers.",
    "self_attn.o_proj.": "attn.out_proj.",
    "post_attention_layernorm.": "norm1.",
    "post_mlp_layernorm.": "norm2.",
    "mlp.up_proj.": "mlp.fc11.",
    "mlp.gate_proj.": "mlp.fc12.",
    "mlp.down_proj.": "mlp.fc2.",
}
"""transformers' names -> those of Nomic's own class"""
NOMIC_KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}


def write_as_nomic(folder: Path, **settings: Any) -> None:
    """What `write_encoder` has written of a NomicBertModel, as Nomic's own class has it."""
    model = transformers.NomicBertModel.from_pretrained(folder)
    stored: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        for theirs, own in OF_NOMIC.items():
            name = own.join(name.split(theirs, 1)) if theirs in name else name
        stored[name] = value.contiguous()
    for index in range(model.config.num_hidden_layers):
        begin = f"encoder.layers.{index}."
        parts = [stored.pop(f"{begin}self_attn.{part}_proj.weight") for part in "qkv"]
        stored[f"{begin}attn.Wqkv.weight"] = torch.cat(parts)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    own = {name: config.pop(key) for key, name in NOMIC_KEYS.items()}
    for key in ("hidden_act", "rope_parameters", "head_dim"):
        config.pop(key, None)
    more = {"activation_function": "swiglu", "rotary_emb_base": 1000.0, "qkv_proj_bias": False}
    (folder / "config.json").write_text(json.dumps({**config, **own, **more, **settings}))


def write_judge(folder: Path, family: str, **settings: Any) -> Any:
    """A random decoder with a head for labels."""
    config = {**SHAPE, "vocab_size": 260, **settings}
    return write(folder, f"{family}ForSequenceClassification", f"{family}Config", config)


def write(folder: Path, name: str, config: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(len(name))
    made = getattr(transformers, config)(**settings)
    made._attn_implementation = "eager"
    model = getattr(transformers, name)(made).float()
    scramble(model)
    model.save_pretrained(folder)
    return model.eval()


def write_wordpiece(folder: Path) -> int:
    """A lower-casing WordPiece vocabulary with BERT's templates; returns how many words it has."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS.split()))}
    core = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))  # type: ignore[call-arg]
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    core.add_special_tokens(list(SPECIAL))
    return save(core, folder, {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"})


def write_unigram(folder: Path) -> int:
    """A Unigram vocabulary with RoBERTa's templates."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *map("\u2581{}".format, WORDS.split()), "e", "s"]
    core = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], 3))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    core.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    return save(core, folder, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})


def save(core: Tokenizer, folder: Path, named: dict[str, str]) -> int:
    (folder / "tokenizer.json").write_text(core.to_str(), "utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return core.get_vocab_size()


def read_inputs(folder: Path, first: str, second: str | None = None) -> dict[str, torch.Tensor]:
    """What transformers' model is given for a text or a pair."""
    core = Tokenizer.from_str((folder / "tokenizer.json").read_text("utf-8"))
    found = core.encode(first, second) if second is not None else core.encode(first)
    inputs = {"input_ids": found.ids, "token_type_ids": found.type_ids}
    inputs["attention_mask"] = found.attention_mask
    return {name: torch.tensor([value]) for name, value in inputs.items()}
