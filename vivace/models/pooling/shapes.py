"""Shapes of models that answer with numbers, as memory and `vivace check` see them. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from vivace.models.architecture import (
    Architecture,
    Shapes,
    first_architecture,
    parse_architecture,
)
from vivace.models.class_name import causal_name
from vivace.models.pooling.kinds import ENCODERS, NOMIC
from vivace.models.pooling.nomic import nomic_config


def parse_served(config: Mapping[str, Any], title: str) -> Architecture:
    """As `parse_architecture`, of whatever Vivace serves. An encoder keeps nothing of a token, and
    its layers' weights are counted in an MLP with as many."""
    name = first_architecture(config)
    if name not in ENCODERS:
        known = {**config, "architectures": [causal_name(name)]} if name else config
        return parse_architecture(known, title)
    gated = ENCODERS[name].family == NOMIC
    config = nomic_config(config) if gated else config
    found = parse_architecture({**config, "tie_word_embeddings": True}, title)
    inner = Shapes(config, title).size("intermediate_size")
    wide = (4 * found.hidden + (3 if gated else 2) * inner) // 3
    return replace(found, linear_layers=found.layers, dense_width=wide)
