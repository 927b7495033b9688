"""Who looks on at the ranks of a program's engine: a step that hangs ends them, nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from vivace.config.child_process import Adoption, adopt_orphans, adopts_orphans
from vivace.observability.watchdog import PAUSE_SECONDS
from vivace.offline.rank_watch import RankWatch


@dataclass
class Rank:
    name: str = "rank 1"
    pid: int = 1 << 30
    killed: bool = False

    def kill(self) -> None:
        self.killed = True


class Watched:
    """A watch of steps that may take 10 seconds, at times that the test tells."""

    def __init__(self) -> None:
        self.rank = Rank()
        self.watch = RankWatch([self.rank], 10.0)
        self.watch.close()  # its own looks
        self.now = time.monotonic()

    def pass_seconds(self, seconds: float, look: float = 0.5) -> None:
        for _ in range(int(seconds / look)):
            self.now += look
            self.watch.look(self.now)


def test_a_step_that_hangs_ends_the_ranks_and_rest_does_not() -> None:
    one = Watched()
    one.pass_seconds(30)
    for _ in range(4):
        one.watch.begin()
        one.pass_seconds(6)
        one.watch.end()
    assert not one.rank.killed
    one.watch.begin()
    one.pass_seconds(11)
    assert one.rank.killed and "10 s" in one.watch.cause


def test_time_in_which_the_program_was_stopped_itself_does_not_count() -> None:
    one = Watched()
    one.watch.begin()
    one.pass_seconds(4)
    one.pass_seconds(600, look=600)
    one.pass_seconds(5)
    assert PAUSE_SECONDS < 600 and not one.rank.killed
    one.pass_seconds(2)
    assert one.rank.killed


def test_a_step_that_comes_while_others_are_looked_at_was_only_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Watched()
    monkeypatch.setattr(one.watch, "_find_awaited", one.watch.end)
    one.watch.begin()
    one.pass_seconds(11)
    assert not one.rank.killed


def test_orphans_are_adopted_until_the_last_of_starts_at_the_same_time_is_over() -> None:
    adoption, before = Adoption(), adopts_orphans()
    first, second = adoption.as_before(), adoption.as_before()
    first.__enter__()
    adopt_orphans()
    second.__enter__()
    first.__exit__(None, None, None)
    assert adopts_orphans()
    second.__exit__(None, None, None)
    assert adopts_orphans() == before
