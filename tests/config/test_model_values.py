"""What a model's own files say, where the configuration takes it over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from config_kit import resolved

from vivace.config.checks import CHECKS
from vivace.config.config import Options
from vivace.config.resolution import ResolveContext
from vivace.frontend.served_model import served_model
from vivace.frontend.validation import CheckedSampling, check_defaults


def test_notices_of_the_model_are_shown_at_the_start() -> None:
    config = resolved()
    facts = replace(config.facts, notices=("config.json: eos_token_id has -1",))
    around = ResolveContext(source=config.source, facts=facts, platform=config.platform)
    shown = [line for check in CHECKS for line in check(Options(), around)]
    assert "config.json: eos_token_id has -1" in shown


GREEDY = {
    "do_sample": False, "temperature": 0, "top_p": 0, "top_k": 0, "min_p": None,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"top_k": -1}, {"top_p": 0.0}, {"temperature": 0.0}])
def test_greedy_defaults(changes: dict[str, Any]) -> None:
    config = resolved("--sampling-defaults", "model")
    source = replace(config.source, generation_config=GREEDY | changes)
    served = served_model(replace(config, source=source), None)
    check_defaults(served)
    sampling = CheckedSampling({}, served).behind(1)
    assert sampling.temperature == 0 and sampling.top_k == 0
    # a request that wants a temperature still gets the one token that top_p leaves
    assert 0 < CheckedSampling({"temperature": 1}, served).behind(1).top_p < 1e-5
