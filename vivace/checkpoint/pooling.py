"""How a model of embeddings makes one vector of a text, from the files that sentence-transformers
puts beside its weights: modules.json, and config.json in the folder of each module. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import CORRECT, ConfigFields, Flag, Integer, ListOf, OneOf, Text
from vivace.checkpoint.json_files import read_json, read_value
from vivace.checkpoint.source import ModelSource

MODULES_FILE, CONFIG_FILE = "modules.json", "config.json"
LAST, MEAN, CLS, STEPS = "last", "mean", "cls", "steps"
MODES = {
    "pooling_mode_lasttoken": LAST,
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_cls_token": CLS,
}
"""sentence-transformers' switches -> what is pooled"""
OTHER_MODES = (
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
)
NAMES = {"lasttoken": LAST, "mean": MEAN, "cls": CLS}
"""of the one key that newer releases write in place of the switches"""
GGUF_KEY = "pooling_type"
GGUF_MODES = {1: MEAN, 2: CLS, 3: LAST}
"""llama.cpp's numbers"""
POOLED = {
    LAST: "the last token",
    MEAN: "the mean of all tokens",
    CLS: "the first token",
    STEPS: "each token that ends a step",
}
"""whose hidden states are the answer, or make its vector"""
FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
SUPPORTED = (
    "of Transformer, Pooling and Normalize, in this order, only Normalize may be left out; use a "
    "model made of these"
)


@dataclass(frozen=True, kw_only=True)
class PoolerConfig:
    """`mode`: of POOLED; `normalize`: to length 1; `stated`: by the model's files; `dimensions`:
    sizes to which vectors may be cut (Matryoshka), None: any."""

    mode: str = LAST
    normalize: bool = True
    stated: bool = field(default=True, compare=False)
    dimensions: tuple[int, ...] | None = None


def read_pooling(source: ModelSource, hidden_size: int) -> PoolerConfig:
    """Of a model; where its files say nothing the last token, normalized, as in SGLang. Raises
    SourceError for values that nothing here does."""
    fields = ConfigFields(source.config, source.place, CORRECT)
    return replace(
        read_way(source, fields, hidden_size), dimensions=read_sizes(fields, hidden_size)
    )


def read_sizes(fields: ConfigFields, hidden_size: int) -> tuple[int, ...] | None:
    """PoolerConfig.dimensions, by the keys that SGLang and vLLM read."""
    if fields.has("matryoshka_dimensions"):
        kind = ListOf(Integer(1, hidden_size), 256, 1)
        return tuple(fields.need("matryoshka_dimensions", kind))
    return None if fields.get("is_matryoshka", Flag(), True) else ()


def read_way(source: ModelSource, fields: ConfigFields, hidden_size: int) -> PoolerConfig:
    """How vectors are made."""
    if source.spelling and fields.has(GGUF_KEY):
        kind = fields.need(GGUF_KEY, Integer(0, 1 << 31))
        if kind not in GGUF_MODES:
            known = ", ".join(f"{number} ({mode})" for number, mode in GGUF_MODES.items())
            raise fields.refusal(GGUF_KEY, f"supported are {known}")
        return PoolerConfig(mode=GGUF_MODES[kind])
    return read_modules(source.path, hidden_size)


def read_modules(folder: Path, hidden_size: int) -> PoolerConfig:
    """What sentence-transformers has written into a model's folder."""
    file = folder / MODULES_FILE
    modules = read_value(file) if folder.is_dir() else None
    if modules is None:
        return PoolerConfig(stated=False)
    if not isinstance(modules, list):
        raise SourceError(f"{file}: must be a list of modules. {CORRECT}")
    found = [read_module(file, index, module) for index, module in enumerate(modules)]
    kinds = [kind for kind, _ in found]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        listed = ", ".join(kinds) or "none"
        raise SourceError(f"{file}: the modules are {listed}; {SUPPORTED}")
    path = folder / found[1][1] / CONFIG_FILE
    values = read_json(path, required=True)
    fields = ConfigFields(values, lambda key: f"{path}: {key}", CORRECT)
    return PoolerConfig(mode=read_mode(fields, hidden_size), normalize=len(kinds) == 3)


def read_module(file: Path, index: int, module: Any) -> tuple[str, str]:
    """(class, folder) of a module; the first one's is the model's own."""
    place = f"{file}: [{index}]"
    if not isinstance(module, dict):
        raise SourceError(f"{place} must be an object. {CORRECT}")
    fields = ConfigFields(module, lambda key: f"{place}.{key}", CORRECT)
    kind = fields.need("type", Text()).rpartition(".")[2]
    path = module.get("path")
    if not isinstance(path, str) or (index and not FOLDER.fullmatch(path)) or (not index and path):
        wanted = "the name of a folder beside it" if index else "empty"
        raise fields.refusal("path", f"it must be {wanted}")
    return kind, path


def read_mode(fields: ConfigFields, hidden_size: int) -> str:
    """What is pooled: exactly one way of it."""
    size = fields.get("word_embedding_dimension", Integer(1, 1 << 20), hidden_size)
    if size != hidden_size:
        raise fields.refusal("word_embedding_dimension", f"the model has {hidden_size}")
    fields.get("include_prompt", Flag(), True)
    if fields.has("pooling_mode"):
        return fields.need("pooling_mode", OneOf(NAMES))
    for key in OTHER_MODES:
        if fields.get(key, Flag(), False):
            raise fields.refusal(key, f"supported are {', '.join(MODES)}")
    chosen = [mode for key, mode in MODES.items() if fields.get(key, Flag(), False)]
    if len(chosen) != 1:
        which = f"{len(chosen)} of {', '.join(MODES)} are true; exactly one must be"
        raise SourceError(f"{fields.place('pooling_mode')}: {which}. {CORRECT}")
    return chosen[0]
