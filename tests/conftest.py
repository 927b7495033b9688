"""Settings of the whole suite: no deadlines (machines are shared), signals as in a terminal, one
thread of torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from vivace.config.child_process import PR_SET_CHILD_SUBREAPER, adopts_orphans, control_process

settings.register_profile(
    "vivace", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("vivace")

# Read when torch is loaded. Its threads wait in loops: with more of them than free cores, toys take
# several times as long. What is about threads asks for its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A parent that ignores signals (nohup, a shell's background job) hands that down to all children.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """What starts processes later in this worker would hand down what a test left ignored."""
    before = [signal.getsignal(number) for number in STOPPING]
    yield
    after = [signal.getsignal(number) for number in STOPPING]
    for number, handler in zip(STOPPING, before, strict=True):
        signal.signal(number, handler)
    assert after == before, "the test left other signal handlers behind"


@pytest.fixture(autouse=True)
def orphans_are_left() -> Iterator[None]:
    """Who starts ranks adopts what they leave, and this worker has other tests to run."""
    before = adopts_orphans()
    yield
    control_process(PR_SET_CHILD_SUBREAPER, before)
