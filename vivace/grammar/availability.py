"""Whether a configuration can have structured output."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from vivace.errors import CannotStart

if TYPE_CHECKING:
    from vivace.config.config import Config

PACKAGE = "llguidance"
XGRAMMAR = "xgrammar"
"""the name of a backend and of its package"""
SWITCHED_OFF = "the server was started with --grammar-backend none; leave the field out"
NO_TOKENIZER = "the server runs without a tokenizer, which grammars need; leave the field out"
NO_END = "the model has no token that ends an answer, which grammars need; leave the field out"
NO_MODEL = "this server draws tokens without a model (VIVACE_EXECUTOR)"


def why_no_grammars(config: Config) -> str:
    """What a request that asks for structured output is told; empty: nothing is missing."""
    if config.kernels.grammar_backend == "none":
        return SWITCHED_OFF
    if package := missing_package(config):
        return (
            f"structured output needs the Python package {package}, which the server lacks: pip "
            f"install {package}"
        )
    if config.model.skip_tokenizer_init:
        return NO_TOKENIZER
    if not config.facts.eos_ids:
        return NO_END
    return NO_MODEL if config.environment.get("VIVACE_EXECUTOR") else ""


def missing_package(config: Config) -> str:
    """That structured output needs; empty: none. llguidance refuses what cannot be enforced, for
    every backend."""
    needed = [PACKAGE, *[XGRAMMAR] * (config.kernels.grammar_backend == XGRAMMAR)]
    return next((name for name in needed if importlib.util.find_spec(name) is None), "")


def require_backend(config: Config) -> None:
    """CannotStart when a backend is asked for that is not installed."""
    asked = None if config.model.is_embedding else config.kernels.grammar_backend
    if asked not in (None, "none") and (package := missing_package(config)):
        others = "llguidance or none" if package == XGRAMMAR else "none"
        raise CannotStart(
            f"--grammar-backend {asked} needs the Python package {package}: pip install {package}, "
            f"or start with {others}"
        )
