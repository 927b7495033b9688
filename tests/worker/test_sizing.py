from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.worker.sizing import DEFAULT_LARGEST, GIB, RESERVE, Demand, SizingError, size


def demand(**changes):
    values = {
        "total_bytes": 24 * GIB,
        "available_bytes": 20 * GIB,
        "kv_bytes_per_token": 46080,
        "page_size": 16,
        "context": 8192,
    }
    return Demand(**{**values, **changes})


def test_without_a_wish_the_pool_stays_modest():
    fit = size(demand())
    assert fit.pages * 16 * 46080 <= DEFAULT_LARGEST
    assert fit.context == 8192 and fit.rows == 256


def test_the_fraction_covers_weights_and_kv():
    fit = size(demand(static_fraction=0.5))
    assert (fit.pages + 1) * 16 * 46080 > 8 * GIB >= fit.pages * 16 * 46080


def test_max_total_tokens_caps_pool_and_context():
    fit = size(demand(max_total_tokens=1000, page_size=1))
    assert (fit.pages, fit.context, fit.rows) == (1000, 1000, 256)


def test_no_more_than_all_rows_can_use():
    fit = size(demand(max_running_requests=2, context=100, page_size=1))
    assert (fit.pages, fit.rows) == (202, 2)


def test_too_little_memory_says_what_to_do():
    with pytest.raises(SizingError, match="mem-fraction-static"):
        size(demand(available_bytes=RESERVE))
    with pytest.raises(SizingError, match="max-total-tokens"):
        size(demand(max_total_tokens=3))


@given(
    st.integers(1, 1 << 36),
    st.integers(1, 1 << 24),
    st.integers(1, 256),
    st.integers(1, 1 << 20),
    st.none() | st.floats(0.01, 1.0),
)
def test_what_is_sized_fits(available, per_token, page_size, context, fraction):
    asked = demand(
        total_bytes=available * 2,
        available_bytes=available,
        kv_bytes_per_token=per_token,
        page_size=page_size,
        context=context,
        static_fraction=fraction,
    )
    try:
        fit = size(asked)
    except SizingError:
        return
    assert fit.pages >= 1 and 1 <= fit.rows <= 256
    assert fit.pages * page_size * per_token <= available
    assert 1 <= fit.context <= min(context, fit.pages * page_size)
