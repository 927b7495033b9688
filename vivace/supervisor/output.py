"""What children print, as whole lines.

On a terminal that the supervisor draws on, their standard streams are a pipe to it. The pipe does
not block its writers: a child whose lines nobody takes loses them (observability/log.py).
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from vivace.observability.log import escape
from vivace.supervisor.child import Child

CHUNK = 1 << 16
LONGEST_LINE = 1 << 16
"""bytes: who writes more without an end of line gets one"""


class ChildOutput:
    """The reading end of one child's pipe."""

    def __init__(self, descriptor: int, write: Callable[[str], object]) -> None:
        """`write` takes whole lines. The descriptor is ours from now on."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._write = write
        self._unfinished = b""

    def forward(self) -> bool:
        """The lines that have arrived; False when no more can come."""
        while True:
            try:
                chunk = os.read(self.descriptor, CHUNK)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._add(chunk)

    def finish(self) -> None:
        """Its process is gone: pass on what is left."""
        self.forward()
        if self._unfinished:
            self._add(b"\n")
        os.close(self.descriptor)

    def _add(self, chunk: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
        if len(self._unfinished) > LONGEST_LINE:
            lines.append(self._unfinished)
            self._unfinished = b""
        texts = (escape(line.decode(errors="backslashreplace")) + "\n" for line in lines)
        if lines:
            self._write("".join(texts))


class Outputs:
    """Passes the lines of all children on, in the selector's turn."""

    def __init__(self, selector: selectors.BaseSelector, write: Callable[[str], object]) -> None:
        self._selector = selector
        self._write = write
        self._open: dict[Child, ChildOutput] = {}

    def follow(self, child: Child) -> None:
        if child.output is None:
            return
        output = self._open[child] = ChildOutput(child.output, self._write)
        self._selector.register(output.descriptor, selectors.EVENT_READ, lambda: self._read(child))

    def finish(self, child: Child) -> None:
        """It is dead: what it printed last comes before what is said about it."""
        output = self._open.pop(child, None)
        if output is not None:
            if output.descriptor in self._selector.get_map():
                self._selector.unregister(output.descriptor)
            output.finish()

    def _read(self, child: Child) -> None:
        output = self._open.get(child)  # None: it was reaped earlier in this turn
        if output is not None and not output.forward():
            self._selector.unregister(output.descriptor)
