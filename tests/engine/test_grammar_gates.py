"""A request whose grammar is compiled waits for it, and nobody waits with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from engine_rig import EOS, Rig

from vivace.engine.settings import EngineSettings
from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import FINISH_ABORT, Finish, Request
from vivace.protocol.step import StepResult


@dataclass
class HandGate:
    opened: bool = False
    refusal: Finish | None = None

    def is_open(self) -> bool:
        return self.opened


class Gates:
    """A closed gate for each request with a grammar."""

    def __init__(self) -> None:
        self.made: dict[int, HandGate] = {}

    def __call__(self, request: Request) -> HandGate | None:
        if request.sampling.constraint is None:
            return None
        return self.made.setdefault(request.key, HandGate())


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
def rig(gates: Gates) -> Rig:
    return Rig(grammar_gate=gates)


GRAMMAR = Constraint(kind=REGEX, text="a")


def test_others_pass_a_closed_gate(rig: Rig, gates: Gates) -> None:
    rig.send(1, [5, 6, 7], constraint=GRAMMAR)
    rig.step(3)
    assert gates.made and not rig.answers[1].tokens
    rig.send(2, [5, 6, 7])
    rig.run()
    assert rig.answers[2].finish is not None and rig.answers[1].finish is None
    assert rig.scheduler.next_moment() is None  # it sleeps until somebody rings
    gates.made[1].opened = True
    rig.run()
    assert rig.answers[1].tokens == rig.expected(1)


def test_who_is_refused_ends_alone(rig: Rig, gates: Gates) -> None:
    rig.send(1, [5, 6, 7], constraint=GRAMMAR)
    rig.send(2, [5, 6, 7])
    rig.step(2)
    refusal = Finish(FINISH_ABORT, message="regex: no", status=400)
    gates.made[1].refusal, gates.made[1].opened = refusal, True
    rig.run()
    assert rig.answers[1].finish == refusal and not rig.answers[1].tokens
    assert rig.answers[2].tokens == rig.expected(2)
    assert not rig.scheduler.audit() and not rig.scheduler.state().waiting


def test_who_waits_at_a_gate_can_be_cancelled(rig: Rig) -> None:
    rig.send(1, [5, 6, 7], constraint=GRAMMAR)
    rig.step(2)
    rig.cancel(1)
    rig.step(2)
    assert rig.scheduler.load()[0] == 0 and not rig.scheduler.audit()


@pytest.mark.parametrize("status", [400, 500, 503])
def test_an_answer_that_cannot_go_on_ends_with_the_status_that_its_row_gave(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """500 where the library of grammars has failed, 503 where another time may go well; the others
    go on. What is the client's fault is no error of the server's."""
    rig = Rig(EngineSettings(eos_ids=(EOS,)))
    for key in range(2):
        rig.send(key, [1, 2], 10, ignore_eos=True)
    rig.step(2)
    plan = rig.scheduler.plan(idle=True)
    assert plan is not None
    why = {0: (status, "regex: why")}
    result = StepResult(
        number=plan.number, advanced=[0, 1], tokens=[[], [EOS + 1]], bad={0: "NaN"}, stuck=why
    )
    rig.scheduler.commit(plan, result)
    (ended,) = (one for one in rig.scheduler.take_deltas() if one.finish is not None)
    assert ended.key == 0 and ended.finish is not None and not ended.finish.bad_numbers
    assert (ended.finish.status, ended.finish.message) == why[0]
    assert (ended.finish.retry_after is not None) == (status == 503)
    errors = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert bool(errors) == (status >= 500)
