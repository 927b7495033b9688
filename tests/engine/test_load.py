"""What an engine says of its load, by which frontends choose one."""

from __future__ import annotations

from engine_rig import Rig


def test_prompts_that_wait_count() -> None:
    rig = Rig(rows=1)
    for key in range(4):
        rig.send(key, [5 + key] * 30, 4)
    rig.loop.step(0)
    requests, tokens = rig.scheduler.load()
    assert requests == 4
    assert tokens >= 3 * 30
    rig.run()
    assert rig.scheduler.load()[0] == 0
    rig.at_rest()


def test_who_is_cancelled_waits_no_more() -> None:
    rig = Rig(rows=1)
    for key in range(4):
        rig.send(key, [5 + key] * 30, 4)
    rig.loop.step(0)
    rig.cancel(1, 2, 3)
    rig.run()
    requests, tokens = rig.scheduler.load()
    assert requests == 0
    assert tokens < 60, "what is cached of the one that ran"
