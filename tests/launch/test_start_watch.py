"""An engine that starts, and those that stand meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vivace.supervisor.watch import StartWatch


class ScriptedInquiry:
    """Whom it finds."""

    def __init__(self, *, stopped: str = "", awaited: str = "") -> None:
        self.begun = 0
        self.who_is_stopped, self.awaited = stopped, awaited

    def begin(self) -> None:
        self.begun += 1

    def stopped(self) -> str:
        return self.who_is_stopped

    def result(self) -> str:
        return self.who_is_stopped or self.awaited


def watch_start(inquiry: ScriptedInquiry, seconds: int, progress: Sequence[int] = ()) -> list[str]:
    """What the engine is killed for, if a start lasts so long, in which it gets on at these."""
    killed: list[str] = []
    engine: Any = SimpleNamespace(
        name="engine", stage="Loading", kill=killed.append, progressed=0.0
    )
    watch = StartWatch(3.0)
    watch.restart(0.0)
    for tenth in range(10 * seconds):
        if tenth / 10 in progress:
            engine.progressed = tenth / 10
        watch.check(engine, tenth / 10, inquiry)
        if killed:
            break
    return killed


def test_a_start_that_gets_on_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    inquiry = ScriptedInquiry(awaited="rank 1 does not come")
    assert watch_start(inquiry, 9, [2, 4, 6, 8]) == []
    assert inquiry.begun == 0 and caplog.text == ""


def test_who_is_awaited_in_a_start_is_named_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may only be slow."""
    assert watch_start(ScriptedInquiry(awaited="rank 1 does not come"), 9) == []
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"The engine: it has not got on with its start for {s} s (Loading): rank 1 does not come"
        for s in (4, 8)
    ]


def test_who_is_stopped_in_a_start_is_named_once_and_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (cause,) = watch_start(ScriptedInquiry(stopped="rank 1 is stopped"), 9)
    assert cause == "it has not got on with its start for 4 s (Loading): rank 1 is stopped"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "While the engine starts, rank 1 is stopped" in told
