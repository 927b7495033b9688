"""What a model is by its config.json, and how large its authors say that it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.checkpoint.source import locate
from vivace.models.facts import ModelFacts, describe_architecture, read_facts


def facts(folder: Path, config: dict[str, Any]) -> ModelFacts:
    (folder / "config.json").write_text(json.dumps(config))
    return read_facts(locate(str(folder), load_format="dummy"))


def check_parameters(found: ModelFacts, billions: float, active: float) -> None:
    """`active`: billions that one token is multiplied with"""
    assert not found.notices
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    counted = describe_architecture(found).parameters(active=True)
    assert counted / 1e9 == pytest.approx(active, rel=0.05)
