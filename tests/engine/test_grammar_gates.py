"""A request whose grammar is compiled waits for it, and nobody waits with it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from engine_rig import Rig

from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import FINISH_ABORT, Finish, Request


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
