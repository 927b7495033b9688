"""Settings of the whole suite: no deadlines (machines are shared), signals as in a terminal, one
thread of torch."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

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

# What could speak TLS first reads the system's 150 authorities, in 50 ms: each client of httpx, and
# aiohttp as it is imported. Nobody here calls strangers.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "kit" / "nobody.pem")

# A parent that ignores signals (nohup, a shell's background job) hands that down to all children.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected (700 MB) stays: no later collection of garbage looks at it,
    which would take half a second each time. Whichever of the processes side by side reads a file
    of tests first keeps it compiled for the others, whatever PYTHONDONTWRITEBYTECODE says."""
    gc.disable()
    usual, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = usual
        gc.collect()
        gc.freeze()
        gc.enable()


LONGEST = {"test_worst_bodies.py", "test_server_wrong_types.py", "test_supervisor.py"}
"""files of a minute that would be the last of their folders"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests say why they are skipped. Files of every folder are spread over the whole run:
    those that start servers mostly wait, and side by side they would wait for each other. The
    longest come earlier: in the end the other workers would wait for them."""
    if not os.environ.get("VIVACE_SLOW_TESTS"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with VIVACE_SLOW_TESTS=1"))
    folders: dict[str, dict[str, None]] = {}
    for item in items:
        folders.setdefault(str(item.path.parent), {})[str(item.path)] = None
    places = {
        file: ((place + 0.5) / len(files) - 0.5 * (Path(file).name in LONGEST), file)
        for files in folders.values()
        for place, file in enumerate(files)
    }
    items.sort(key=lambda item: places[str(item.path)])


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
