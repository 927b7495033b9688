"""Prompts that are computed here and continued elsewhere, or the other way round: what waits for
KV blocks nobody, and nobody gets pages that a transfer uses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from engine_rig import EOS, Rig
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.engine.oracle import OracleWorker, hash_kv
from vivace.engine.sequence import Sequence
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import LogprobOptions
from vivace.protocol.tasks import Embed, Generate, KVTransfer


def oracle_worker(rig: Rig) -> OracleWorker:
    worker = rig.executor._worker
    assert isinstance(worker, OracleWorker)
    return worker


def rig_with(delay: int | None = None, **options: object) -> Rig:
    settings = EngineSettings(eos_ids=(EOS,), depth=options.pop("depth", 1))  # type: ignore[arg-type]
    rig = Rig(settings, **options)  # type: ignore[arg-type]
    oracle_worker(rig).transfers.delay = delay
    return rig


def receive(rig: Rig, key: int, tokens: list[int], length: int = 8, **options: object) -> None:
    """A request whose prompt another engine computes, its first token with it."""
    rig.send(
        key,
        tokens,
        length,
        resume=1,
        transfer=KVTransfer(room=key, receive=True),
        ignore_eos=True,
        **options,  # type: ignore[arg-type]
    )
    oracle_worker(rig).transfers.rooms[key] = hash_kv(tokens)


def run_on(rig: Rig) -> None:
    """To the end, though it sleeps while only transfers are under way."""
    for _ in range(40):
        rig.run()
        rig.step()


def check(rig: Rig) -> None:
    assert oracle_worker(rig).transfers.corrupted == []
    rig.at_rest()
    for key in rig.answers:
        rig.check(key)


@pytest.mark.parametrize("delay", [0, 3, 20])
def test_what_comes_is_not_computed_again(delay: int) -> None:
    rig = rig_with(delay)
    receive(rig, 0, list(range(30)))
    rig.send(1, [9, 9], 40, ignore_eos=True)
    rig.run()
    check(rig)
    computed = rig.scheduler.state().metrics.series[0]
    assert computed.labels == {"mode": "prefill_compute"} and computed.value == 2 + 1


def test_what_goes_stays_in_its_pages_until_it_is_there() -> None:
    rig = rig_with(pages=16)
    prompt = list(range(21))
    rig.send(0, prompt, 1, transfer=KVTransfer(room=5, receive=False), ignore_eos=True)
    rig.step(4)
    assert rig.answers[0].finish is not None, "the client need not wait for the transfer"
    for key in range(1, 6):  # they would take the pages, and evict what is cached
        rig.send(key, [key] * 20, 16, ignore_eos=True)
    rig.step(60)
    (ticket,) = oracle_worker(rig).transfers.tickets
    oracle_worker(rig).end_transfer(ticket)
    rig.run()
    check(rig)
    assert oracle_worker(rig).transfers.sent[5][:21] == hash_kv(prompt)


def test_a_transfer_begins_though_nobody_is_left_to_plan_for() -> None:
    """The loop does not sleep before it has; and a server that shuts down waits for it."""
    rig = rig_with()
    rig.send(0, [1, 2, 3], 1, transfer=KVTransfer(room=5, receive=False), ignore_eos=True)
    while rig.loop.wait_timeout() == 0.0 or not rig.answers[0].finish:
        rig.step()
    assert oracle_worker(rig).transfers.tickets == [1]
    assert rig.scheduler.busy
    oracle_worker(rig).end_transfer(1)
    rig.run()
    assert not rig.scheduler.busy
    check(rig)


def test_nothing_turns_while_everything_waits() -> None:
    rig = rig_with()
    for key in range(3):
        receive(rig, key, list(range(20 + key)))
    rig.step(4)
    for _ in range(3):
        assert rig.loop.wait_timeout() is None, "the loop sleeps until somebody rings"
    rings: list[int] = []
    oracle_worker(rig).transfers.ring = lambda: rings.append(1)
    for ticket in oracle_worker(rig).transfers.tickets:
        oracle_worker(rig).end_transfer(ticket)
    assert len(rings) == 3
    rig.run()
    check(rig)


def test_the_mailbox_is_woken_by_the_executor() -> None:
    rig = rig_with()
    woken: list[int] = []
    rig.mailbox.wake = lambda: woken.append(1)  # type: ignore[method-assign]
    rig.loop = type(rig.loop)(rig.scheduler, rig.executor, rig.mailbox, clock=rig.clock)
    receive(rig, 0, [1, 2, 3])
    rig.step(2)
    oracle_worker(rig).end_transfer(oracle_worker(rig).transfers.tickets[0])
    assert woken == [1]


def test_who_waits_for_kv_blocks_nobody_behind_it() -> None:
    rig = rig_with(rows=1)
    receive(rig, 0, list(range(40)))
    rig.send(1, [5], 3, ignore_eos=True)
    rig.run()
    assert rig.answers[1].finish is not None and rig.answers[0].finish is None
    state = rig.scheduler.state()
    assert (state.running, state.waiting) == (0, 1)
    oracle_worker(rig).end_transfer(1)
    rig.run()
    check(rig)


def test_what_does_not_come_is_computed(caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_with(2)
    oracle_worker(rig).transfers.failing = {0}
    for key in range(2):
        receive(rig, key, list(range(key, 25)))
    run_on(rig)
    check(rig)
    assert caplog.text.count("room 0") == 1 and "room 1" not in caplog.text


@pytest.mark.parametrize("moment", [1, 3, 6])
def test_a_cancelled_request_leaves_its_pages_to_the_transfer(moment: int) -> None:
    rig = rig_with(pages=16)
    receive(rig, 0, list(range(30)))
    rig.step(moment)
    rig.cancel(0)
    for key in range(1, 5):
        rig.send(key, [key] * 12, 12, ignore_eos=True)
    rig.step(80)
    for ticket in oracle_worker(rig).transfers.tickets:
        oracle_worker(rig).end_transfer(ticket)
    rig.run()
    assert oracle_worker(rig).transfers.corrupted == []
    rig.at_rest()
    for key in range(1, 5):
        rig.check(key)


def test_those_that_received_make_place_when_pages_run_out() -> None:
    """What came is dropped and computed again, rather than that nobody goes on."""
    rig = rig_with(0, pages=16, rows=1)
    rig.send(9, [1], 60, ignore_eos=True)
    rig.step(4)
    for key in range(3):
        receive(rig, key, list(range(14)), 4)
    rig.run()
    check(rig)


def test_a_waiting_timeout_holds_for_those_who_wait_for_kv() -> None:
    rig = Rig(EngineSettings(eos_ids=(EOS,), depth=1, waiting_timeout=2.0))
    receive(rig, 0, list(range(9)))
    rig.step(3)
    timeout = rig.loop.wait_timeout()
    assert timeout is not None and 0 < timeout <= 2.0
    rig.clock.now += 2.1
    rig.step(2)
    assert rig.answers[0].finish is not None and rig.answers[0].finish.status == 503
    oracle_worker(rig).end_transfer(1)
    rig.step(2)
    rig.at_rest()


@pytest.mark.parametrize(
    "wanted",
    [
        {"logprobs": LogprobOptions(start=0)},
        {"task": Generate(hidden_state_start=0)},
        {"task": Generate(hidden_state_start=2), "resume": 1},
        {"task": Embed(), "max_new_tokens": 0},
    ],
)
def test_only_who_computes_a_prompt_has_what_comes_of_it(wanted: dict[str, Any]) -> None:
    rig, transfer = rig_with(0), KVTransfer(room=0, receive=True)
    rig.send(0, [1, 2, 3], transfer=transfer, **wanted)
    rig.run()
    finish = rig.answers[0].finish
    assert finish is not None and (finish.type, finish.status) == ("abort", 400)
    rig.at_rest()


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from(["plain", "send", "receive"]),
            st.integers(1, 24),
            st.integers(1, 12),
            st.integers(0, 5),
        ),
        min_size=1,
        max_size=12,
    ),
    delay=st.integers(0, 9),
    failing=st.sets(st.integers(0, 11)),
    cancelled=st.sets(st.integers(0, 11)),
    pages=st.sampled_from([10, 16, 64]),
    rows=st.sampled_from([1, 3, 8]),
    depth=st.sampled_from([1, 2, 3]),
    late=st.booleans(),
)
def test_any_mixture(
    requests: list[tuple[str, int, int, int]],
    delay: int,
    failing: set[int],
    cancelled: set[int],
    pages: int,
    rows: int,
    depth: int,
    late: bool,
) -> None:
    """`Rig.step` audits after each turn: holds too."""
    rig = rig_with(delay, pages=pages, rows=rows, depth=depth, late=late)
    oracle_worker(rig).transfers.failing = failing
    for key, (kind, prompt, length, pause) in enumerate(requests):
        tokens = [(key % 3 + n) % 97 for n in range(min(prompt, 4 * pages - length - 4))]
        if kind == "receive":
            receive(rig, key, tokens, length + 1)
        else:
            transfer = KVTransfer(room=key, receive=False) if kind == "send" else None
            rig.send(key, tokens, length, ignore_eos=True, transfer=transfer)
        if key in cancelled:
            rig.cancel(key)
        rig.step(pause)
    run_on(rig)
    assert oracle_worker(rig).transfers.corrupted == []
    rig.at_rest()
    for key, answer in rig.answers.items():
        assert answer.finish is not None
        if answer.finish.type != "abort":
            rig.check(key)
        else:
            assert key in cancelled


class Slots:
    """A resource of which there are few, and not everybody needs one."""

    in_turn = False

    def __init__(self, total: int) -> None:
        self.free = total
        self.most = 0

    def fits(self, sequence: Sequence, without: Collection[Sequence] = ()) -> bool:
        return self.free > 0 or sequence.key % 2 == 0

    def take(self, sequence: Sequence) -> None:
        self.free -= sequence.key % 2
        self.most += 1

    def release(self, sequence: Sequence) -> None:
        self.free += sequence.key % 2


def test_a_resource_is_a_row_of_the_table() -> None:
    """Who needs one waits for it and holds nobody up; it comes back however they end."""
    rig = rig_with()
    slots = Slots(1)
    table = rig.scheduler._table
    table.resources = (*table.resources, slots)
    for key in range(6):
        rig.send(key, [key, 1], 20 + key, ignore_eos=True)
    rig.step(12)
    running = {sequence.key for sequence in table.running()}
    assert running == {0, 1, 2, 4}
    rig.cancel(1)
    rig.run()
    assert slots.free == 1 and slots.most == 6
    for key in (0, 2, 3, 4, 5):
        rig.check(key)
