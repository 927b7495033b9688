"""How other tools lay models out: which files are GGUF, which of them are models, and where a model
is when the folder that was named has none. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.json_files import MAX_INDEX, is_file, read_json

GGUF_MAGIC = b"GGUF"
PART_OF_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
MISTRALS_CONFIG, OLLAMAS_RECIPE = "params.json", "Modelfile"
BELOW = ("*/config.json", "*/*.gguf", "snapshots/*/config.json", "snapshots/*/*.gguf")
"""where models lie in folders of several: other precisions, a repository of the hub's cache"""
SHOWN = 4
QUANT_DESCRIPTION = "quant_model_description*.json"
QUANTIZE_CONFIGS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""what AutoGPTQ and AutoAWQ wrote before config.json had a key for it, and whose it is"""


@dataclass(frozen=True, kw_only=True)
class StoredKind:
    """The matrices of a GGUF file that have one type. `kind`: GGUF's name in lower case."""

    kind: str
    nbytes: int
    numbers: int
    in_layers: bool
    """some are in layers, not embedding or head"""


@dataclass(frozen=True, kw_only=True)
class InputGroups:
    """How many neighboring inputs of a layer stay on one rank, because they share a scale; by kind
    of layer."""

    heads: int = 1
    """of what makes hidden states of all heads"""
    mlp: int = 1
    """of the last matrix of an MLP"""
    experts: int = 1
    shared: int = 1
    """of the expert that every token passes"""


def is_gguf_file(path: Path) -> bool:
    """By its content where the name says nothing: Ollama names its blobs by their hashes."""
    if path.suffix == ".gguf":
        return path.is_file()
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def is_whole_model(name: str) -> bool:
    """Whether a GGUF file of this name is a model of its own: no part of one, and no projector of
    a vision model."""
    return (
        name.endswith(".gguf")
        and not PART_OF_GGUF.search(name)
        and not name.lower().startswith("mmproj")
    )


def where_a_model_is(folder: Path) -> str:
    """What to do about a folder without config.json and GGUF files."""
    found = {place.parent for pattern in BELOW for place in islice(folder.glob(pattern), SHOWN)}
    if found:
        names = ", ".join(str(place) for place in sorted(found)[:SHOWN])
        return f"no model lies in it, but below: give {names}"
    if is_file(folder / MISTRALS_CONFIG):
        return (
            f"{MISTRALS_CONFIG} and no config.json: Mistral's own layout, which is not read; fetch "
            "the files in Hugging Face's (config.json, model*.safetensors, tokenizer.json)"
        )
    if is_file(folder / OLLAMAS_RECIPE):
        return (
            f"a {OLLAMAS_RECIPE} is no model: give the GGUF file that its line FROM names (Ollama "
            "keeps them as ~/.ollama/models/blobs/sha256-...)"
        )
    return "config.json is missing; a model's folder needs it, or give a GGUF file"


def read_quant_description(folder: Path) -> dict[str, Any]:
    """What ModelSlim writes beside its weights: the type of every tensor. Empty: there is none."""
    files = sorted(folder.glob(QUANT_DESCRIPTION)) if folder.is_dir() else []
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:SHOWN])
        raise SourceError(f"{folder}: more than one description: {names}; keep the one that counts")
    return read_json(files[0], limit=MAX_INDEX, required=True) if files else {}


def read_quantize_config(folder: Path) -> tuple[str, dict[str, Any]]:
    """(file, what it says) of how weights are quantized, where an older tool wrote that into a file
    of its own; ("", {}): there is none."""
    for name, method in QUANTIZE_CONFIGS.items():
        if folder.is_dir() and (found := read_json(folder / name)):
            return str(folder / name), {"quant_method": method, **found}
    return "", {}
