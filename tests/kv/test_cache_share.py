"""The share of the prefix cache: bounded at first, earned by prefixes that come back."""

from __future__ import annotations

from vivace.kv.leases import Leases
from vivace.kv.prefix_tree import pack

PAGE = 2
PAGES = 40
SHARE = 6


def leases_with(share: int | None = SHARE) -> Leases:
    return Leases(PAGES, PAGE, cache_share=share)


def serve(leases: Leases, name: int, pages: int = 4) -> int:
    """A request of so many pages, from beginning to end; returns how many were cached."""
    key = pack([100 * name + position for position in range(pages * PAGE)])
    lease = leases.open(str(name), "", key, pages)
    found = len(lease.pages)
    leases.grow(lease, pages - found)
    leases.close(lease, key)
    return found


def test_one_request_after_another_takes_no_more_memory_than_the_share() -> None:
    leases = leases_with()
    for name in range(20):
        serve(leases, name)
    assert leases.touched_in[0] == SHARE and leases.cached == SHARE
    assert leases.audit() == []


def test_without_a_share_the_whole_pool_is_used() -> None:
    leases = leases_with(None)
    for name in range(20):
        serve(leases, name)
    assert leases.touched_in[0] == PAGES


def test_what_runs_together_gets_its_pages_whatever_the_share_is() -> None:
    leases = leases_with()
    running = [leases.open(str(name), "", b"", 0) for name in range(4)]
    for lease in running:
        leases.grow(lease, 10)
    assert leases.used == leases.touched_in[0] == PAGES


def test_prefixes_that_keep_coming_back_earn_memory_until_all_stay() -> None:
    leases = leases_with()
    rounds = [[serve(leases, name) for name in range(5)] for _ in range(5)]
    assert rounds[1] == [0] * 5 and rounds[-1] == [4] * 5
    assert leases.share_grown and leases.touched_in[0] == 5 * 4
    leases.forget_returns()
    assert leases.vacancy_in == [5 * 4 - SHARE]


def test_one_repetition_earns_nothing() -> None:
    leases = leases_with()
    for _ in range(2):
        for name in range(20):
            serve(leases, name)
    assert not leases.share_grown and leases.touched_in[0] == SHARE


def test_asking_again_and_again_is_one_return() -> None:
    """A request that waits for pages looks for its prefix at every step."""
    leases = leases_with()
    for name in range(5):
        serve(leases, name)
    key = pack(list(range(4 * PAGE)))
    for _ in range(10):
        leases.close(leases.open("waits", "", key, 4))
    assert not leases.share_grown


def test_a_conversation_as_long_as_the_share_stays_while_nobody_comes() -> None:
    leases = leases_with()
    for name in range(3):
        serve(leases, name)
    serve(leases, 9, SHARE)
    leases.compact(99)
    assert serve(leases, 9, SHARE) == SHARE
