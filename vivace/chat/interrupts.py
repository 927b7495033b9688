"""Signals that are handled at once however the main thread waits."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import termios
import threading
import time
from collections.abc import Iterator

from vivace.echo import ENDING

WAKE_SIGNALS = {signal.SIGINT, signal.SIGCONT, *ENDING}
WAKING = signal.SIGURG
"""ignored by default, and by everybody here"""
WAKING_SECONDS = (0.02, 0.1, 0.5)
"""after a signal, one after another"""


@contextlib.contextmanager
def wake_on_signals() -> Iterator[None]:
    """Python's handlers of signals run although the main thread, which is the caller, has just
    begun to wait: for a key, for an answer. Otherwise a signal that arrives between its last look
    and the wait is handled when the wait is over, and Ctrl-C seems lost."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    main = threading.main_thread().ident or 0

    def wake() -> None:
        # The main thread gets them, as it decides when it does.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with os.fdopen(reader, "rb", buffering=0) as signals:
            while numbers := signals.read(64):
                for pause in WAKING_SECONDS if WAKE_SIGNALS & {*numbers} else ():
                    time.sleep(pause)
                    signal.pthread_kill(main, WAKING)

    before = signal.signal(WAKING, lambda number, frame: None)
    descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=wake, name="signal wake-up", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        os.close(writer)  # the thread ends
        signal.signal(WAKING, before)


def wait_for_foreground(terminal: int) -> None:
    """Where it is in the background, this process is stopped until it is not. The kernel looks and
    stops at once: a shell that brings it to the foreground meanwhile would find it stopped there.
    """
    waits = os.isatty(terminal)
    while waits:
        try:
            termios.tcdrain(terminal)
            waits = False
        except termios.error as error:  # another one: nobody would make it go on
            waits = error.args[0] == errno.EINTR
