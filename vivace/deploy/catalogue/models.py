"""Models a deployment can name, and any config.json -> Architecture."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from vivace.deploy.files import below, is_folder, packaged_path
from vivace.files import read_file
from vivace.models.architecture import Architecture, parse_architecture
from vivace.models.stored_weights import ScaleBlocks

LARGEST = 1 << 20
"""bytes of a file"""


class KnownModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`config`: the keys of its config.json that shapes follow from; `fp8`: who publishes it in
    FP8 with blocks of 128 x 128 weights, too."""

    name: str
    title: str
    aliases: tuple[str, ...]
    config: dict[str, Any]
    source: str
    fp8: str = ""


@cache
def models() -> tuple[KnownModel, ...]:
    return msgspec.json.decode(
        read_file(packaged_path("catalogue/models.json"), LARGEST), type=tuple[KnownModel, ...]
    )


def find_model(name: str) -> KnownModel | None:
    """By name or alias, in any case."""
    wanted = name.lower()
    return next((each for each in models() if wanted in (each.name, *each.aliases)), None)


VARIANTS = frozenset(
    """instruct chat base it thinking hf dynamic block quantized fp8 bf16 fp16 awq gptq int4 int8
    w8a8 w4a8 w4a16 w8a16 mxfp4 nvfp4 fp4 mtp preview turbo exp terminus modelslim""".split()
)
"""words behind a model's name that leave its shapes as they are"""


def names_exactly(path: str) -> bool:
    """Whether the last part of a path or a repository id is a model's name, at most with words
    that leave its shapes as they are."""
    words = words_beside(path)
    return words is not None and all(word in VARIANTS or word.isdecimal() for word in words)


def names_release(path: str) -> bool:
    """Whether a date follows the model's name: of the same shapes, but maybe a longer context."""
    return any(word.isdecimal() and len(word) >= 4 for word in words_beside(path) or ())


def words_beside(path: str) -> list[str] | None:
    """What the last part of a path has beside a model's name; None if it has no such name."""
    text = re.sub(r"[\s_]+", "-", path.rstrip("/").rpartition("/")[2].lower())
    known = guess_model(text)
    if known is None:
        return None
    longest = max((each for each in (known.name, *known.aliases) if each in text), key=len)
    return [word for word in re.split(r"[-.]", text.replace(longest, "", 1)) if word]


def exact_model(path: str) -> str | None:
    """The title of the model that a path names exactly."""
    known = guess_model(path) if names_exactly(path) else None
    return known and known.title


def guess_model(path: str) -> KnownModel | None:
    """The model that a path or a repository id seems to name: the longest alias within it."""
    text = re.sub(r"[\s_]+", "-", path.lower())
    found = [
        (len(name), each)
        for each in models()
        for name in (each.name, *each.aliases)
        if name in text and re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9.])", text)
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


class DescribedModel(msgspec.Struct, frozen=True):
    """A model whose config.json is known, as far as the catalogue has it; `folder`: where that file
    lies, empty for a model of the catalogue."""

    name: str
    config: dict[str, Any]
    architecture: Architecture
    folder: str = ""


def describe_known(model: KnownModel, path: str = "") -> DescribedModel:
    """As it is published; where the path names its release in FP8, as that."""
    config, shape = model.config, known_architecture(model, path)
    if names_fp8(model, path):
        blocks = [shape.blocks.rows, shape.blocks.columns]
        stored = {"quant_method": "fp8", "weight_block_size": blocks}
        config = {**config, "quantization_config": stored}
    return DescribedModel(model.name, config, shape)


def known_architecture(model: KnownModel, path: str = "") -> Architecture:
    """As it is published; where the path names its release in FP8, with the blocks of that."""
    found = parse_architecture(model.config, model.title)
    if not names_fp8(model, path):
        return found
    owner = path.lower().rstrip("/").rpartition("/")[0].rpartition("/")[2]
    blocks = ScaleBlocks(128, 128, certain=owner == model.fp8.lower())
    return msgspec.structs.replace(found, blocks=blocks)


def names_fp8(model: KnownModel, path: str) -> bool:
    """Whether a path seems to be that of the model's release in FP8."""
    return bool(model.fp8) and path.lower().rstrip("/").endswith(("-fp8", "_fp8", ".fp8"))


def read_description(path: str) -> DescribedModel:
    """From a config.json, or the folder that holds one. Raises SourceError naming what is wrong."""
    from pathlib import Path

    from vivace.checkpoint.json_files import read_json
    from vivace.models.pooling.shapes import parse_served

    file = below(path, "config.json") if is_folder(path) else path
    config = read_json(Path(file), required=True)
    return DescribedModel(file, config, parse_served(config, file), str(Path(file).parent))
