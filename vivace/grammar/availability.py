"""Whether a configuration can have structured output."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from vivace.errors import CannotStart

if TYPE_CHECKING:
    from vivace.config.config import Config

PACKAGE = "llguidance"
NOT_INSTALLED = (
    f"structured output needs the Python package {PACKAGE}, which the server lacks: pip install "
    f"{PACKAGE}"
)
SWITCHED_OFF = "the server was started with --grammar-backend none; leave the field out"
NO_TOKENIZER = "the server runs without a tokenizer, which grammars need; leave the field out"
NO_END = "the model has no token that ends an answer, which grammars need; leave the field out"
NO_MODEL = "this server draws tokens without a model (VIVACE_EXECUTOR)"


def why_no_grammars(config: Config) -> str:
    """What a request that asks for structured output is told; empty: nothing is missing."""
    if config.kernels.grammar_backend == "none":
        return SWITCHED_OFF
    if importlib.util.find_spec(PACKAGE) is None:
        return NOT_INSTALLED
    if config.model.skip_tokenizer_init:
        return NO_TOKENIZER
    if not config.facts.eos_ids:
        return NO_END
    return NO_MODEL if config.environment.get("VIVACE_EXECUTOR") else ""


def require_backend(config: Config) -> None:
    """CannotStart when a backend is asked for that is not installed."""
    asked = config.kernels.grammar_backend
    if asked not in (None, "none") and importlib.util.find_spec(PACKAGE) is None:
        raise CannotStart(f"--grammar-backend {asked}: {NOT_INSTALLED}, or start with none")
