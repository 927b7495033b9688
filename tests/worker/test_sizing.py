"""How much fits, by memory that is made up."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vivace.config.parallel import ExpertOptions, ParallelOptions
from vivace.platforms.groups import SingleRank
from vivace.worker.build import longest_request
from vivace.worker.rank_sizes import (
    agree,
    own_share,
    share_memory,
    size_together,
    windows_of_all,
)
from vivace.worker.sizing import (
    DEFAULT_MAX_BYTES,
    GIB,
    RESERVE,
    Demand,
    SizingError,
    WindowDemand,
    size_pool,
)

WEIGHTS = GIB


@pytest.mark.parametrize(
    ("flags", "latent", "tokens"),
    [
        ({}, False, 1000),
        ({"tp_size": 2}, False, 2000),
        ({"tp_size": 8}, False, 4000),
        ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, False, 2000),
        ({"tp_size": 8}, True, 1000),
        ({"tp_size": 4, "pp_size": 2}, True, 2000),
    ],
)
def test_the_longest_request_is_what_an_attention_group_holds(flags, latent, tokens):
    """4 heads of keys; bytes of 1,000 tokens are free on each rank."""
    config = SimpleNamespace(
        memory=SimpleNamespace(disable_hybrid_swa_memory=False),
        facts=SimpleNamespace(
            full_kv_elements=64, kv_elements=96, kv_heads=4, latent=latent or None, context=1 << 20
        ),
        model=SimpleNamespace(context_length=None),
        parallel=ParallelOptions(**flags),
        experts=ExpertOptions(),
    )
    assert longest_request(config, 64 * 2 * 1000, torch.bfloat16) == tokens


def demand(**changes):
    values = {
        "free_bytes": 20 * GIB,
        "available_bytes": 19 * GIB,
        "weight_bytes": WEIGHTS,
        "kv_bytes_per_token": 46080,
        "page_size": 16,
        "context": 8192,
        "rows": 256,
        "window_slack": 64,
    }
    return Demand(**{**values, **changes})


def told(fit):
    return {rewrite.field: (rewrite.before, rewrite.after) for rewrite in fit.rewrites}


def test_without_a_wish_the_pool_stays_modest():
    fit = size_pool(demand())
    assert fit.pages * 16 * 46080 <= DEFAULT_MAX_BYTES
    assert fit.context == 8192 and fit.rows == 256 and not fit.rewrites


def test_what_a_drafter_keeps_of_each_row_is_not_the_pool_s():
    kept = {"rows": 64, "row_bytes": 1 << 26}
    for asked in ({"static_fraction": 0.5}, {"max_total_tokens": 1 << 20}):
        without, fit = size_pool(demand(rows=64, **asked)), size_pool(demand(**kept, **asked))
        assert fit.rows == 64
        missing = (without.pages - fit.pages) * demand().page_bytes
        assert abs(missing - (4 * GIB)) <= demand().page_bytes
    with pytest.raises(SizingError, match="features"):
        size_pool(demand(rows=256, row_bytes=1 << 30))


def test_logits_of_drafts_are_kept_free():
    """Of all rows at once; weights and KV may have what --mem-fraction-static says nevertheless."""
    logits, asked = 12 * 152_000, {"max_total_tokens": 1 << 20, "static_fraction": 0.99}
    without, fit = size_pool(demand(**asked)), size_pool(demand(draft_logits=logits, **asked))
    missing = (without.pages - fit.pages) * demand().page_bytes
    assert abs(missing - 256 * 4 * logits) <= demand().page_bytes
    modest = {"static_fraction": 0.5}
    assert (
        size_pool(demand(draft_logits=logits, **modest)).pages == size_pool(demand(**modest)).pages
    )


def test_rows_whose_logits_leave_no_room_are_named():
    with pytest.raises(SizingError, match="logits") as caught:
        size_pool(demand(rows=256, draft_logits=1 << 26))
    assert "64.25 GiB for activations" in str(caught.value)
    assert "--max-running-requests" in str(caught.value)
    assert size_pool(demand(rows=16, draft_logits=1 << 26)).rows == 16


def test_cached_prefixes_take_as_much_as_one_longest_request_unless_a_size_is_asked_for():
    assert size_pool(demand()).cache_share == 8192 // 16
    assert size_pool(demand(context=100)).cache_share == 7
    for asked in ({"static_fraction": 0.5}, {"max_total_tokens": 16_000}):
        fit = size_pool(demand(**asked))
        assert fit.cache_share == fit.pages
    small = size_pool(demand(context=1 << 20))
    assert small.cache_share == small.pages


def test_the_fraction_covers_weights_and_kv():
    asked = demand(static_fraction=0.5)
    fit = size_pool(asked)
    assert (fit.pages + 1) * asked.page_bytes > 10 * GIB - WEIGHTS >= fit.pages * asked.page_bytes
    assert not fit.rewrites


GEMMA = (WindowDemand(window=512, kv_bytes_per_token=22 * 1024),)
"""as of Gemma 3 1B: 22 of 26 layers see 512 tokens"""


def test_windows_get_what_all_rows_need_and_the_rest_holds_more_tokens():
    asked = {"static_fraction": 0.5, "context": 32768, "rows": 8, "step_tokens": 2048}
    together = size_pool(demand(kv_bytes_per_token=26 * 1024, **asked))
    split = demand(kv_bytes_per_token=4 * 1024, windows=GEMMA, **asked)
    fit = size_pool(split)
    (group,) = fit.others
    assert group.reach == 511
    row = group.row_pages(64, 16)
    assert (row, group.pages) == (37, 8 * 37 + 2048 // 16)
    assert split.pool_bytes(fit.pages) <= 10 * GIB - WEIGHTS < split.pool_bytes(fit.pages + 1)
    assert fit.pages > 6 * together.pages
    assert not fit.rewrites


def test_windows_never_have_more_tokens_than_the_full_layers():
    (group,) = size_pool(demand(max_total_tokens=1600, windows=GEMMA)).others
    assert group.pages == 100


def test_the_ratio_of_the_window_pool_is_kept_or_told():
    fit = size_pool(demand(max_total_tokens=16_000, windows=GEMMA, window_ratio=0.25))
    assert fit.others[0].pages == 250 and "swa_full_tokens_ratio" not in told(fit)
    fit = size_pool(demand(max_total_tokens=16_000, windows=GEMMA, window_ratio=0.001))
    assert fit.others[0].pages == 37 and told(fit)["swa_full_tokens_ratio"] == (0.001, 0.037)
    fit = size_pool(demand(max_total_tokens=16_000, window_ratio=0.25))
    assert told(fit)["swa_full_tokens_ratio"] == (0.25, None)


def test_a_model_of_windows_only_holds_as_many_tokens_as_rows_can_fill():
    """Where no layer keeps every token, these cost their book-keeping only."""
    asked = demand(
        kv_bytes_per_token=0, windows=GEMMA, rows=4, context=1 << 20, static_fraction=0.2
    )
    fit = size_pool(asked)
    assert fit.context == 1 << 20 and fit.pages == 4 * ((1 << 16) + 1)
    assert fit.others[0].pages == 4 * 37


def test_what_others_hold_is_not_counted_as_ours():
    """0.3 of a 23 GiB machine of which others use 6: the fraction is of what was free."""
    fit = size_pool(demand(free_bytes=17 * GIB, available_bytes=16 * GIB, static_fraction=0.3))
    assert fit.pages * 16 * 46080 > 4 * GIB


def test_weights_that_are_a_mapped_file_are_counted_once():
    """Their pages are available still, but KV must leave them room."""
    asked = demand(available_bytes=20 * GIB, static_fraction=0.99)
    fit = size_pool(asked)
    assert fit.pages * asked.page_bytes <= 19 * GIB - RESERVE
    copied = size_pool(demand(static_fraction=0.99))
    assert copied.pages == fit.pages


def test_max_total_tokens_caps_pool_and_context():
    fit = size_pool(demand(max_total_tokens=1000, page_size=1))
    assert (fit.pages, fit.context, fit.rows) == (1000, 1000, 256)
    assert told(fit) == {"context_length": (8192, 1000)}


def test_max_total_tokens_may_exceed_what_the_rows_can_fill():
    """A big prefix cache beside few rows."""
    fit = size_pool(demand(max_total_tokens=100_000, rows=2, context=100, page_size=1))
    assert (fit.pages, fit.rows, fit.rewrites) == (100_000, 2, ())


def test_more_than_memory_is_lowered_with_the_reason():
    fit = size_pool(demand(max_total_tokens=100_000_000))
    tokens = fit.pages * 16
    assert 300_000 < tokens < 400_000 and told(fit) == {"max_total_tokens": (100_000_000, tokens)}
    assert "20.00 GiB were free" in fit.rewrites[0].reason


def test_no_more_rows_than_pages():
    fit = size_pool(demand(max_total_tokens=12_288, context=4096, page_size=4096))
    assert (fit.pages, fit.rows) == (3, 3)
    assert {one.field for one in fit.rewrites} == {"max_running_requests"}


def test_no_more_than_all_rows_can_use_when_nobody_asks():
    fit = size_pool(demand(rows=2, context=100, page_size=1))
    assert (fit.pages, fit.rows) == (202, 2)


def test_too_little_memory_says_what_to_do():
    with pytest.raises(SizingError, match="Free memory") as short:
        size_pool(demand(available_bytes=RESERVE))
    assert "--max-total-tokens" not in str(short.value)
    with pytest.raises(SizingError, match=r"--max-total-tokens 3: .* 16 "):
        size_pool(demand(max_total_tokens=3))
    with pytest.raises(SizingError, match=r"Free memory .*--page-size"):
        size_pool(demand(available_bytes=RESERVE + (1 << 20), page_size=4096))


def test_a_fraction_that_is_too_small_is_named_as_the_cause():
    with pytest.raises(SizingError, match=r" --mem-fraction-static 0\.01, ") as short:
        size_pool(demand(static_fraction=0.01))
    assert "are left" not in str(short.value)


@given(
    st.integers(1, 1 << 36),
    st.floats(0, 1.2),
    st.integers(0, 1 << 36),
    st.integers(1, 1 << 24),
    st.integers(1, 256),
    st.integers(1, 1 << 20),
    st.integers(1, 1000),
    st.none() | st.floats(0.01, 0.99),
    st.none() | st.integers(1, 1 << 40),
)
def test_what_is_sized_fits_and_what_is_changed_is_told(
    free, left, weights, per_token, page_size, context, rows, fraction, tokens
):
    asked = demand(
        free_bytes=free,
        available_bytes=int(free * left),
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        page_size=page_size,
        context=context,
        rows=rows,
        static_fraction=fraction,
        max_total_tokens=tokens,
    )
    try:
        fit = size_pool(asked)
    except SizingError as error:
        advice_works(asked, str(error))
        return
    pool = fit.pages * page_size
    assert fit.pages >= 1 and 1 <= fit.rows <= rows
    assert fit.pages * asked.page_bytes <= min(asked.available_bytes, free - weights) - RESERVE
    assert 1 <= fit.context <= min(context, pool)
    changed = told(fit)
    assert (fit.rows == rows) or changed["max_running_requests"] == (rows, fit.rows)
    assert (fit.context == context) or changed["context_length"] == (context, fit.context)
    assert tokens in (None, pool) or changed["max_total_tokens"] == (tokens, pool)
    if fraction is not None and tokens is None and "mem_fraction_static" not in changed:
        assert (fit.pages + 1) * asked.page_bytes + weights > free * fraction - 1


def advice_works(asked, text):
    """Whoever follows the error's advice gets a pool."""
    fraction = re.search(r"--mem-fraction-static that works is ([\d.]+)", text)
    least = re.search(r"give (\d+) or more", text)
    changes = {name: getattr(asked, name) for name in asked.__dataclass_fields__}
    if fraction:
        assert size_pool(Demand(**{**changes, "static_fraction": float(fraction[1])})).pages
    elif least:
        try:
            size_pool(Demand(**{**changes, "max_total_tokens": int(least[1])}))
        except SizingError as error:
            assert "--max-total-tokens" not in str(error)
    else:
        assert "Free memory" in text


class ThreadRank(SingleRank):
    """One of several, each in a thread."""

    def __init__(self, rank: int, size: int, meeting: Barrier, said: dict) -> None:
        self.rank, self.size = rank, size
        self._meeting, self._said = meeting, said

    def minimum(self, numbers):
        self._said[self.rank] = numbers
        self._meeting.wait(10)
        found = [min(column) for column in zip(*self._said.values(), strict=True)]
        self._meeting.wait(10)
        return found


def on_ranks(size: int, run) -> list:
    """What each rank gets from run(its group)."""
    meeting, said = Barrier(size), {}
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, [ThreadRank(rank, size, meeting, said) for rank in range(size)]))


def test_ranks_agree_on_what_all_have_room_for():
    """All take the sizes of the one with the least room, of its own weights and layers."""
    windows = (WindowDemand(window=512, kv_bytes_per_token=100),)
    mine = demand(windows=windows, state_bytes=7)
    tight = replace(mine, weight_bytes=3 * WEIGHTS, kv_bytes_per_token=2 * 46080)
    light = replace(mine, weight_bytes=WEIGHTS // 2, kv_bytes_per_token=3 * 46080, state_bytes=9)
    ranks = [mine, tight, light, tight]
    agreed = on_ranks(4, lambda group: agree(ranks[group.rank], group))
    least = min(ranks, key=lambda one: size_pool(one).pages)
    assert agreed == [replace(least, state_bytes=9)] * 4
    assert agree(mine, SingleRank()) == mine
    sizes = on_ranks(4, lambda group: size_together(ranks[group.rank], group, lambda *_: None))
    assert {size.pages for size in sizes} == {size_pool(agreed[0]).pages}
    assert size_pool(agreed[0]).pages < size_pool(mine).pages


def test_a_stage_without_states_has_their_group_and_nothing_in_it():
    ranks = [demand(state_bytes=0), demand(state_bytes=9)]
    one, other = on_ranks(2, lambda group: size_together(ranks[group.rank], group, lambda *_: None))
    assert one.others == (structs.replace(other.others[0], kv_bytes=0),)
    assert other.others[0].kv_bytes > 0


def test_cache_groups_are_those_of_the_layers_of_all_stages():
    own = [(512,), (), (64, 4096), (512,)]
    found = on_ranks(4, lambda group: windows_of_all(own[group.rank], group))
    assert found == [(64, 512, 4096)] * 4
    assert windows_of_all((3, 9), SingleRank()) == (3, 9)


class Memory:
    """A platform with so many bytes free."""

    def __init__(self, free: int) -> None:
        self.free = free

    def available_bytes(self) -> int:
        return self.free


class FirstRank(SingleRank):
    """Of two: the other one has these numbers."""

    def __init__(self, others: list[list[int]]) -> None:
        self.others = others

    def minimum(self, numbers):
        return [min(pair) for pair in zip(numbers, self.others.pop(0), strict=True)]


def test_an_engine_that_follows_another_has_its_share():
    """Beside engines that live on and hold theirs, a part of what is free would be less."""
    first, _ = share_memory(Memory(100 * GIB), 2, 0, SingleRank())
    assert first == 50 * GIB
    left = Memory(55 * GIB)
    assert share_memory(left, 2, first, SingleRank()) == (first, first)
    assert own_share(left, 2, first - WEIGHTS) == first - WEIGHTS
    assert share_memory(Memory(30 * GIB), 2, first, SingleRank()) == (30 * GIB, first)


def test_rank_0_tells_the_others_the_share():
    free, share = share_memory(Memory(55 * GIB), 4, 25 * GIB, FirstRank([[0], [24 * GIB]]))
    assert (free, share) == (24 * GIB, 25 * GIB)


STATE = 36 * 4 * (32 * 128 * 128 + 3 * 8192)
"""bytes: of Qwen3-Next-80B-A3B, whose other layers keep 24 KiB of a token"""


def recurrent(**changes):
    values = {
        "free_bytes": 200 * GIB,
        "available_bytes": 40 * GIB,
        "weight_bytes": 160 * GIB,
        "kv_bytes_per_token": 24 << 10,
        "context": 1 << 18,
        "state_bytes": STATE,
    }
    return demand(**{**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"drafts": 3},
        {"rows": 2},
        {"saved_states": 0},
        {"saved_states": 1000},
        {"state_ratio": 0.2},
        {"static_fraction": 0.95},
        {"static_fraction": 0.82, "drafts": 4},
        {"drafts": 3, "draft_logits": 1 << 24},
    ],
)
def test_large_states_leave_room_for_tokens(changes):
    """The ratio divides the pool, whatever was asked for; rows are lowered, and it is said."""
    asked = recurrent(**changes)
    fit = size_pool(asked)
    (states,) = fit.others
    tokens = fit.pages * asked.page_size * asked.kv_bytes_per_token
    own = fit.rows * (2 + asked.drafts) + 2
    assert states.kv_bytes == (own + states.pages) * STATE
    assert states.kv_bytes <= 1.01 * asked.state_ratio * tokens
    assert states.pages >= fit.rows or asked.saved_states == 0
    assert fit.context >= 65_536 or asked.static_fraction == 0.82
    if fit.rows < asked.rows:
        assert told(fit)["max_running_requests"] == (asked.rows, fit.rows)
        more = own + states.pages + 2 + asked.drafts + (asked.saved_states != 0)
        assert (more + fit.rows) * STATE > asked.state_ratio * tokens, "one more had room"
    asked_states = {0: None, 1000: (1000, states.pages)}.get(asked.saved_states)
    assert told(fit).get("max_mamba_cache_size") == asked_states


def test_rows_are_as_many_as_have_room_beside_their_own_logits():
    """Not as would have it beside those of all rows that were asked for."""
    fit = size_pool(recurrent(rows=256, drafts=3, draft_logits=1 << 26))
    assert fit.rows == size_pool(recurrent(rows=fit.rows, drafts=3, draft_logits=1 << 26)).rows > 8
    more = size_pool(recurrent(rows=fit.rows + 1, drafts=3, draft_logits=1 << 26))
    assert more.rows == fit.rows


def test_one_request_gets_its_states_whatever_the_ratio():
    fit = size_pool(recurrent(state_ratio=0.001))
    assert (fit.rows, fit.others[0].pages) == (1, 0)


def test_states_that_do_not_fit_are_named():
    with pytest.raises(SizingError, match="states") as caught:
        size_pool(recurrent(static_fraction=0.801, drafts=3))
    assert "7 states of 75.38 MiB (--max-running-requests 1)" in str(caught.value)
    least = float(re.search(r"works is ([\d.]+)", str(caught.value))[1])
    assert size_pool(recurrent(static_fraction=least, drafts=3)).rows == 1


@pytest.mark.parametrize("rows", [1, 256])
@pytest.mark.parametrize("state_bytes", [1000, 1 << 20])
@pytest.mark.parametrize("ratio", [0.9, 1000.0])
def test_the_fraction_that_is_said_to_work_does(rows, state_bytes, ratio):
    """Neither rows nor saved states take what the least pool needs."""
    asked = {"free_bytes": GIB, "available_bytes": GIB, "weight_bytes": 100 << 20, "page_size": 64}
    asked |= {"kv_bytes_per_token": 200_000, "row_bytes": 1 << 20, "rows": rows}
    asked |= {"state_bytes": state_bytes, "state_ratio": ratio}
    with pytest.raises(SizingError, match="works") as caught:
        size_pool(recurrent(static_fraction=0.01, **asked))
    least = float(re.search(r"works is ([\d.]+)", str(caught.value))[1])
    assert size_pool(recurrent(static_fraction=least, **asked)).pages


def test_a_stage_without_states_counts_as_many_as_the_others():
    ranks = [recurrent(), recurrent(state_bytes=0)]
    sizes = on_ranks(2, lambda group: size_together(ranks[group.rank], group, lambda *_: None))
    assert [size.others[0].pages for size in sizes] == [sizes[0].others[0].pages] * 2
    assert sizes[1].others[0].kv_bytes == 0 < sizes[0].others[0].kv_bytes
    assert sizes[0].rows == sizes[1].rows


def test_large_weights_are_worth_a_larger_pool():
    small, large = (
        size_pool(recurrent(weight_bytes=n * GIB, available_bytes=100 * GIB)) for n in (8, 80)
    )
    assert large.pages > 2 * small.pages
