"""What came of trying every causal language model that transformers knows, at toy size.

`transformers_support.json` is written by `python tests/kit/every_architecture.py --write`; a slow
test tries all of them again. Torch-free.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_suffix(".json")


class ModelSupport(msgspec.Struct, frozen=True):
    """`refused` is the reason, "" where the tokens were equal; `untried` why there is no toy."""

    model_type: str
    architecture: str
    refused: str = ""
    untried: str = ""

    @property
    def equal(self) -> bool:
        return not self.refused and not self.untried


class SupportTable(msgspec.Struct, frozen=True):
    transformers: str
    """its version"""
    models: tuple[ModelSupport, ...]

    def of(self, architecture: str) -> tuple[ModelSupport, ...]:
        return tuple(one for one in self.models if one.architecture == architecture)

    def causal_class(self, model_type: Any) -> str:
        """Of the models of a type the class that generates text, "" where none runs here."""
        runs = (one for one in self.models if one.model_type == model_type and one.equal)
        return next((one.architecture for one in runs), "")


@cache
def read_support() -> SupportTable:
    return msgspec.json.decode(FILE.read_bytes(), type=SupportTable)


def advice(architecture: str, model_type: Any = None) -> str:
    """What to do with an architecture that Vivace has not written. `model_type`: as in config.json,
    where anything may stand."""
    found = read_support().of(architecture)
    if not found and (known := read_support().causal_class(model_type)):
        return (
            f"models of the type {model_type!r} that generate text are of {known}: give one of "
            "those (docs/models.md lists what runs)"
        )
    if not found:
        return "transformers' code is not known to run it either (docs/models.md lists what runs)"
    if any(one.equal for one in found):
        return (
            "transformers' code runs it, with the same tokens and without the native kernels: "
            "add --model-impl transformers (and pip install transformers)"
        )
    one = found[0]
    if one.untried:
        return f"with --model-impl transformers it has not been tried ({one.untried})"
    return f"--model-impl transformers cannot run it either: {one.refused}"
