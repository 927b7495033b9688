"""What came of trying every causal language model that transformers knows, at toy size.

`tried.json` is written by `python tests/kit/every_architecture.py --write`; a slow test tries all
of them again. Torch-free.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

FILE = Path(__file__).with_suffix(".json")


class TriedModel(msgspec.Struct, frozen=True):
    """`refused` is the reason, "" where the tokens were equal; `untried` why there is no toy."""

    model_type: str
    architecture: str
    refused: str = ""
    untried: str = ""

    @property
    def equal(self) -> bool:
        return not self.refused and not self.untried


class Tried(msgspec.Struct, frozen=True):
    transformers: str
    """its version"""
    models: tuple[TriedModel, ...]

    def of(self, architecture: str) -> tuple[TriedModel, ...]:
        return tuple(one for one in self.models if one.architecture == architecture)


@cache
def read_tried() -> Tried:
    return msgspec.json.decode(FILE.read_bytes(), type=Tried)


def advice(architecture: str) -> str:
    """What to do with an architecture that Vivace has not written."""
    found = read_tried().of(architecture)
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
