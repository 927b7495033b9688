"""Who is next, per schedule policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.schedule_policy import LPM_LIMIT, ORDERS, WaitingQueue
from vivace.engine.sequence import Sequence
from vivace.engine.settings import EngineSettings
from vivace.kv.leases import Leases
from vivace.kv.prefix_tree import pack
from vivace.protocol.messages import Request, SamplingParams

SETTINGS = EngineSettings(priorities=True)


def waiting(
    ticket: int, tokens: list[int], *, longest: int = 5, priority: int = 0, name: str = ""
) -> Sequence:
    request = Request(
        key=ticket,
        rid=str(ticket),
        tokens=tokens,
        sampling=SamplingParams(max_new_tokens=longest),
        priority=priority,
        cache_key=name,
    )
    sequence = Sequence(request, SETTINGS, seq_no=ticket, max_len=100, now=0.0)
    sequence.refresh_prefix()
    return sequence


def cached(*prompts: list[int]) -> Leases:
    leases = Leases(64, 1)
    for tokens in prompts:
        lease = leases.open("x", "", pack(tokens), 0)
        leases.grow(lease, len(tokens))
        leases.close(lease, pack(tokens))
    return leases


def order(policy: str, leases: Leases, sequences: list[Sequence]) -> list[int]:
    ORDERS.get(policy)(leases, 0).sort(sequences)
    return [sequence.seq_no for sequence in sequences]


def test_first_come_first_served_within_a_priority() -> None:
    sequences = [waiting(3, [1]), waiting(1, [1]), waiting(2, [1], priority=4)]
    assert order("fcfs", cached(), sequences) == [2, 1, 3]
    assert order("priority", cached(), sequences) == [2, 1, 3]


def test_longest_output_first() -> None:
    sequences = [waiting(1, [1], longest=3), waiting(2, [1], longest=9), waiting(3, [1])]
    assert order("lof", cached(), sequences) == [2, 3, 1]


def test_longest_cached_prefix_first() -> None:
    leases = cached([1, 2, 3], [7, 7])
    sequences = [waiting(1, [9]), waiting(2, [7, 7, 1]), waiting(3, [1, 2, 3, 4])]
    assert order("lpm", leases, sequences) == [3, 2, 1]


def test_longest_prefix_becomes_fcfs_when_many_wait() -> None:
    leases = cached([1, 2, 3])
    sequences = [waiting(n, [1, 2, 3, n] if n % 2 else [n + 10]) for n in range(LPM_LIMIT + 1)]
    assert order("lpm", leases, sequences[::-1]) == list(range(LPM_LIMIT + 1))


def test_depth_first_keeps_branches_together_heaviest_first() -> None:
    leases = cached([1, 2, 3], [1, 2, 4], [8, 8])
    sequences = [
        waiting(1, [8, 8, 0]),
        waiting(2, [1, 2, 4, 0]),
        waiting(3, [1, 2, 3, 0]),
        waiting(4, [8, 8, 1]),
        waiting(5, [1, 2, 4, 1]),
    ]
    result = order("dfs-weight", leases, sequences)
    assert result == [2, 5, 1, 4, 3] or result == [2, 5, 3, 1, 4]
    assert abs(result.index(2) - result.index(5)) == 1
    assert abs(result.index(1) - result.index(4)) == 1


def test_random_is_reproducible_and_keeps_everybody() -> None:
    first = order("random", cached(), [waiting(n, [1]) for n in range(20)])
    second = order("random", cached(), [waiting(n, [1]) for n in range(20)])
    assert first == second != sorted(first)
    assert sorted(first) == list(range(20))


def test_unknown_policies_name_the_known_ones() -> None:
    with pytest.raises(KeyError, match="fcfs, lpm"):
        ORDERS.get("best")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "remove", "look"]), st.integers(0, 9), st.integers(0, 2)
        ),
        max_size=60,
    )
)
def test_a_queue_is_what_came_less_what_went(actions: list[tuple[str, int, int]]) -> None:
    """Whoever went may come back, and may be told to go twice."""
    queue = WaitingQueue(ORDERS.get("fcfs")(cached(), 0), max_queued=4)
    sequences = [waiting(key, [key]) for key in range(10)]
    for sequence in sequences:
        sequence.client = sequence.key % 3
    known = set[int]()
    for action, key, client in actions:
        if action == "add" and key not in known:
            queue.add(sequences[key])
            known.add(key)
        elif action == "remove":
            queue.remove([sequences[key], sequences[key]])
            known.discard(key)
        elif action == "look":
            found = [sequence.key for sequence in queue.in_order(client)]
            assert found == sorted(one for one in known if one % 3 == client)
        assert len(queue) == len(known)
        assert queue.full(0) == (len(known) >= 4)
    assert sorted(sequence.key for sequence in queue) == sorted(known)
    last = queue.lowest_priority(waiting(99, [1], priority=1))
    assert (last.key if last else None) == max(known, default=None)
