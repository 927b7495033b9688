"""One client's flood neither starves another's request nor its stream."""

from __future__ import annotations

import pytest
from engine_rig import EOS, Rig
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.engine.settings import EngineSettings
from vivace.protocol.step import StepPlan

FLOOD, GUEST = 1, 2


def rig_with(*, pages: int = 2000, **options: object) -> Rig:
    chosen = {"eos_ids": (EOS,), "depth": 1, "chunk": 32, "rows": 8, **options}
    rig = Rig(EngineSettings(**chosen), pages=pages, page_size=1, context=400)  # type: ignore[arg-type]
    rig.computed = {}  # type: ignore[attr-defined]
    submit = rig.executor.submit

    def spy(plan: StepPlan):  # type: ignore[no-untyped-def]
        for join in plan.joins:
            rig.rows_of[join.row] = rig.answers[join.key].request.client  # type: ignore[attr-defined]
        for row, count in zip(plan.rows, plan.counts, strict=True):
            client = rig.rows_of[row]  # type: ignore[attr-defined]
            rig.computed[client] = rig.computed.get(client, 0) + count  # type: ignore[attr-defined]
        return submit(plan)

    rig.rows_of = {}  # type: ignore[attr-defined]
    rig.executor.submit = spy  # type: ignore[method-assign]
    return rig


def ask(rig: Rig, client: int, length: int, output: int = 3, **options: object) -> int:
    key = len(rig.answers)
    tokens = [(key * 31 + n * 7) % 97 for n in range(length)]
    rig.send(key, tokens, output, client=client, ignore_eos=True, **options)  # type: ignore[arg-type]
    return key


def finished(rig: Rig) -> list[int]:
    """Keys in the order of their ends."""
    ended = [(answer.times[-1], key) for key, answer in rig.answers.items() if answer.finish]
    return [key for _, key in sorted(ended)]


@settings(max_examples=30, deadline=None)
@given(
    flood=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=5, max_size=40),
    turns=st.integers(0, 60),
    length=st.integers(1, 90),
    chunk=st.sampled_from([8, 32]),
    mixed=st.booleans(),
    policy=st.sampled_from(["fcfs", "lof", "lpm"]),
)
def test_a_newcomer_is_served_within_a_rotation(
    flood: list[tuple[int, int]], turns: int, length: int, chunk: int, mixed: bool, policy: str
) -> None:
    """However much another client has queued, is computing or holds in rows."""
    rig = rig_with(chunk=chunk, mixed=mixed, policy=policy)
    for prompt, output in flood:
        ask(rig, FLOOD, prompt, output)
    rig.step(turns)
    before = rig.computed.get(FLOOD, 0)  # type: ignore[attr-defined]
    guest = ask(rig, GUEST, length)
    while not rig.answers[guest].tokens:
        rig.step()
    spent = rig.computed.get(FLOOD, 0) - before  # type: ignore[attr-defined]
    steps = 2 * (length // chunk + 2)
    assert spent <= length + 2 * chunk + steps * 8, "prompt for prompt, and its streams' tokens"
    rig.run()
    rig.at_rest()
    for key in rig.answers:
        rig.check(key)


def test_clients_with_much_to_do_get_the_same() -> None:
    rig = rig_with(rows=8, chunk=8)
    for _ in range(40):
        ask(rig, FLOOD, 5, 5)
        ask(rig, FLOOD, 40, 5)
    for _ in range(30):
        ask(rig, GUEST, 80, 5)
    rig.step(500)
    assert rig.answers[len(rig.answers) - 1].finish is None
    computed = rig.computed  # type: ignore[attr-defined]
    assert computed[FLOOD] == pytest.approx(computed[GUEST], rel=0.15)


def test_rows_are_shared_even_if_one_client_has_taken_them_all() -> None:
    rig = rig_with(rows=4)
    for _ in range(6):
        ask(rig, FLOOD, 4, 200)
    rig.step(20)
    guests = [ask(rig, GUEST, 4, 20) for _ in range(3)]
    rig.step(20)
    assert [bool(rig.answers[key].tokens) for key in guests] == [True, True, False]
    rig.run()
    assert max(answer.deltas[-1].retractions for answer in rig.answers.values()) <= 2
    for key in rig.answers:
        rig.check(key)


def test_pages_are_shared_too() -> None:
    rig = rig_with(pages=120, initial_ratio=0.01)
    for _ in range(2):
        ask(rig, FLOOD, 50, 9)
    rig.step(6)
    guest = ask(rig, GUEST, 40, 4)
    rig.step(12)
    assert rig.answers[guest].tokens
    rig.run()
    for key in rig.answers:
        rig.check(key)


def test_a_request_that_does_not_fit_holds_up_only_its_client() -> None:
    rig = rig_with(pages=100)
    ask(rig, FLOOD, 50, 30)
    rig.step(4)
    big = ask(rig, FLOOD, 60, 30)
    small = ask(rig, GUEST, 4, 4)
    rig.run()
    assert finished(rig).index(small) == 0
    for key in (big, small):
        rig.check(key)


def test_nobody_is_displaced_by_who_has_its_part() -> None:
    rig = rig_with(rows=1)
    first = ask(rig, FLOOD, 4, 30)
    rig.step(4)
    guest = ask(rig, GUEST, 4, 4)
    other = ask(rig, FLOOD, 4, 4)
    rig.run()
    assert finished(rig) == [first, guest, other]
    assert all(not answer.deltas[-1].retractions for answer in rig.answers.values())


def test_importance_comes_before_fairness() -> None:
    rig = rig_with(rows=1, priorities=True, preemption_threshold=100)
    ask(rig, FLOOD, 4, 10, priority=5)
    rig.step(2)
    guest = ask(rig, GUEST, 4, 4, priority=1)
    flood = [ask(rig, FLOOD, 4, 4, priority=5) for _ in range(3)]
    rig.run()
    assert finished(rig)[1:] == [*flood, guest]


def test_who_comes_back_has_no_claim_to_what_it_did_not_want() -> None:
    rig = rig_with(rows=2)
    busy = [ask(rig, FLOOD, 30, 2) for _ in range(20)]
    rig.step(60)
    back = [ask(rig, GUEST, 30, 2) for _ in range(10)]
    rig.run()
    order = [key for key in finished(rig) if key in back or key in busy[-6:]]
    assert any(key in busy for key in order[:4]), "the other is not shut out until it is level"


def test_a_flood_does_not_take_the_places_in_a_bounded_queue() -> None:
    rig = rig_with(rows=1, max_queued=3)
    flood = [ask(rig, FLOOD, 4, 5) for _ in range(4)]
    rig.step()
    guest = ask(rig, GUEST, 4, 5)
    late = ask(rig, FLOOD, 4, 5)
    rig.run()
    status = {key: answer.finish.status for key, answer in rig.answers.items() if answer.finish}
    assert [key for key in status if status[key] == 503] == [flood[3], late]
    rig.check(guest)


def test_one_client_is_served_as_without_clients() -> None:
    def plans(client: int) -> list[tuple[list[int], list[int]]]:
        rig = rig_with(rows=3, policy="lof")
        seen: list[tuple[list[int], list[int]]] = []
        submit = rig.executor.submit

        def spy(plan: StepPlan):  # type: ignore[no-untyped-def]
            seen.append((plan.rows, plan.counts))
            return submit(plan)

        rig.executor.submit = spy  # type: ignore[method-assign]
        for index in range(12):
            ask(rig, client, 5 + index * 7 % 40, 3 + index % 4)
        rig.run()
        return seen

    assert plans(0) == plans(GUEST)
