"""Where chat templates run: `python -m vivace.frontend.template_process PARENT`.

Templates come with models, so nobody vouches for what they compute. Here the kernel holds them to
their limits, whatever they do: a timer of processor time that kills (SIGPROF), a limit of mapped
memory, no file to open. The process talks to its frontend over the socket that is its standard
input, and ends when the other side does, whatever that died of.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys

import jinja2
import msgspec

from vivace.config.child_process import die_with
from vivace.frontend.template_messages import (
    LENGTH,
    Answer,
    Asked,
    Load,
    Loaded,
    Refused,
    Rendered,
    RenderLimits,
    frame,
)
from vivace.frontend.template_sandbox import TooLong, environment, rehearse, text_of, walks_content

KEPT_BYTES = 64 << 20
"""A process that stays larger than it was by more than this ends; the next one is small again."""
LONGEST_REASON = 1000
PAGE = resource.getpagesize()

decode = msgspec.json.Decoder(Asked).decode
encode = msgspec.msgpack.Encoder().encode


def main() -> None:
    with contextlib.suppress(OSError):  # the end of the socket is watched as well
        die_with(int(sys.argv[1]))
    obey_the_frontend_only()
    sock = socket.socket(fileno=0)
    data = received(sock)
    if data is None:
        return
    load = decode(data)
    assert isinstance(load, Load)
    workplace = Workplace(load.limits)
    while data is not None:
        if not sent(sock, frame(workplace.reply(data))) or workplace.spent:
            return
        data = received(sock)


def obey_the_frontend_only() -> None:
    """Ctrl-C and systemd signal every process of the group. The timer's signal must kill, even
    when whoever started the server ignores or blocks it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})


def received(sock: socket.socket) -> bytearray | None:
    """The next message; None when the frontend is gone."""
    head = exactly(sock, LENGTH.size)
    return None if head is None else exactly(sock, LENGTH.unpack(head)[0])


def sent(sock: socket.socket, data: bytes) -> bool:
    """Whether the frontend was there to take it."""
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def exactly(sock: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        try:
            count = sock.recv_into(view[have:])
        except OSError:
            return None
        if not count:
            return None
        have += count
    return data


class Workplace:
    """The compiled templates, and the limits under which everything here happens.

    `spent`: memory ran out or is not given back; the process has to end.
    """

    def __init__(self, limits: RenderLimits) -> None:
        self.spent = False
        self._limits = limits
        self._sandbox = environment()
        self._templates: dict[str, jinja2.Template] = {}
        rehearse(self._sandbox)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        mapped, self._resident = self._sizes()
        most = mapped + limits.memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))

    def reply(self, data: bytearray) -> bytes:
        """The encoded answer to a message; the timer runs until it is made."""
        signal.setitimer(signal.ITIMER_PROF, self._limits.cpu_seconds)
        reply = self._reply(data)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        self.spent = self.spent or self._sizes()[1] > self._resident + KEPT_BYTES
        return reply

    def _reply(self, data: bytearray) -> bytes:
        try:
            return encode(self._answer(data))
        except MemoryError:
            self.spent = True
        except TooLong as error:
            return encode(Refused(str(error), over_limit=True))
        except (jinja2.TemplateError, ArithmeticError, LookupError) as error:
            return encode(Refused(f"refuses them: {clear(error)}"))
        except Exception as error:
            return encode(Refused(f"cannot render them: {clear(error)}"))
        # Out of the handler, so that what took the memory is gone.
        mebibytes = self._limits.memory >> 20
        return encode(Refused(f"takes more memory than the limit of {mebibytes} MiB", True))

    def _answer(self, data: bytearray) -> Answer:
        message = decode(data)
        if isinstance(message, Load):
            return self._load(message)
        template = self._templates[message.template]
        return Rendered(text_of(template, message.variables, self._limits.characters))

    def _load(self, message: Load) -> Answer:
        self.spent = True  # unless all goes well: without templates there is nothing to do here
        walking = []
        for name, source in message.sources.items():
            try:
                self._templates[name] = self._sandbox.from_string(source)
                if walks_content(self._sandbox, source):
                    walking.append(name)
            except MemoryError:
                raise
            except Exception as error:
                return Refused(f"does not compile: {clear(error)}")
        gc.freeze()
        self._resident = self._sizes()[1]
        self.spent = False
        return Loaded(walking)

    def _sizes(self) -> tuple[int, int]:
        """Bytes that are mapped, and that are in memory."""
        mapped, resident = os.pread(self._statm, 128, 0).split()[:2]
        return int(mapped) * PAGE, int(resident) * PAGE


def clear(error: Exception) -> str:
    """A short text that UTF-8 has bytes for."""
    text = str(error)[:LONGEST_REASON] or type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    main()
