"""What reaches the engine is used: each field of a request is read where requests are run."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import vivace
from vivace.protocol.messages import LogprobOptions, Request, SamplingParams

ROOT = Path(vivace.__file__).parent
READERS = (
    *("engine", "worker", "sampling"),
    *(f"frontend/{name}.py" for name in ("request_state", "sglang_output", "detokenizer")),
)


def read_names() -> set[str]:
    """Attributes that the readers look at."""
    paths = [
        path
        for reader in READERS
        for path in ([ROOT / reader] if reader.endswith(".py") else (ROOT / reader).rglob("*.py"))
    ]
    return {
        node.attr
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


@pytest.mark.parametrize("kind", [Request, SamplingParams, LogprobOptions])
def test_every_field_of_a_request_is_read(kind: type[msgspec.Struct]) -> None:
    assert set(kind.__struct_fields__) <= read_names()
