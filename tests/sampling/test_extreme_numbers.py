"""Whatever numbers a request brings: it is refused, or it draws. Nothing in between."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sampler import VOCABULARY, Table, each

from vivace.frontend.errors import BadRequest
from vivace.frontend.served_model import ServedModel
from vivace.frontend.validation import CheckedSampling
from vivace.protocol.messages import LogprobOptions

SERVED = ServedModel(name="m", context=100, vocabulary=VOCABULARY)
EDGES = [0.0, -0.0, 5e-324, 1e-310, 2.2250738585072014e-308, 1e-45, 1.1754943508222875e-38]
EDGES += [1e-38, 1e-30, 1e-7, 9.9e-7, 1e-6, 1.1e-6, 1e-3, 0.5, 1.0 - 2**-53, 1.0, 1.0 + 2**-52]
EDGES += [2.0, 1e4, 1e6, 3.4028235e38, 3.5e38, 1.7976931348623157e308, math.inf, math.nan]
EDGES += [-number for number in EDGES]
NUMBERS = st.sampled_from(EDGES) | st.floats() | st.integers(-(1 << 70), 1 << 70)
FIELDS = ("temperature", "top_p", "min_p", "top_k", "frequency_penalty", "presence_penalty")
FIELDS += ("repetition_penalty", "min_new_tokens", "max_new_tokens", "sampling_seed")
ASKED = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(FIELDS, NUMBERS),
        "logit_bias": st.dictionaries(st.sampled_from("0123"), NUMBERS, max_size=3),
    },
)


def check(ops: Any, asked: dict[str, Any], scale: float) -> bool:
    """Whether the request is taken; then its draw and its log-probabilities are usable."""
    try:
        sampling = CheckedSampling({"sampling_seed": 7, **asked}, SERVED).behind(3)
    except BadRequest as error:
        assert error.status == 400
        return False
    table = Table(ops, [sampling], options={0: LogprobOptions(start=-1, top=3, token_ids=(1,))})
    table.logits *= scale
    draws = table.draw()
    assert not draws.bad.any(), sampling
    assert 0 <= draws.tokens[0] < VOCABULARY
    assert draws.logprobs is not None
    scored = draws.logprobs.read()[0]
    logprob = scored.logprob
    assert logprob is not None and logprob <= 1e-5, (sampling, scored)  # false for NaN
    assert not any(math.isnan(value) for value, _ in scored.top or [])
    return True


@each
@settings(deadline=None, max_examples=150)
@given(asked=ASKED, scale=st.sampled_from([0.01, 1.0, 1000.0]))
def test_any_numbers(ops: Any, asked: dict[str, Any], scale: float) -> None:
    check(ops, asked, scale)


@each
@pytest.mark.parametrize("field", FIELDS)
def test_every_edge_alone(ops: Any, field: str) -> None:
    """Also together with the coldest temperature that draws, which makes numbers largest."""
    taken = 0
    for number in EDGES:
        for other in ({}, {"temperature": 1e-6, "logit_bias": {"1": 1e6, "2": -1e6}}):
            with np.errstate(all="raise", under="ignore"):
                taken += check(ops, {**other, field: number}, 1000.0)
    assert field in ("top_k", "sampling_seed", "min_new_tokens", "max_new_tokens") or taken
