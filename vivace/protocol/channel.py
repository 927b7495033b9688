"""The channel between frontends and engine: typed msgpack messages over unix sockets.

Every frontend connects to the one socket of the engine (protocol/listening_socket.py) under its
index, and talks first: the engine answers over the connection by which it was asked, and drops what
it has for a frontend that is not there. Each message travels in an envelope with the epoch of the
engine it was meant for: what was addressed to an engine that died is dropped by its successor, and
old answers are dropped by the frontends.

Queues have no high-water mark, so nothing is ever dropped silently and nothing blocks the engine.
They stay bounded all the same: toward the engine by the limit on queued requests, toward a
frontend by the tokens its live requests may still produce.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import zmq

from vivace.protocol.listening_socket import address
from vivace.protocol.messages import (
    KEY_SHIFT,
    Cancel,
    Deltas,
    LastRequest,
    Ready,
    Request,
    ToEngine,
    ToFrontend,
)

log = logging.getLogger(__name__)

SUPERVISOR = 1 << 20
"""Frontend index in the tickets of the supervisor's own commands."""
MAX_BATCH = 512
"""Messages taken at a time; the rest waits for the next time."""
ENGINE_BYTES, FRONTEND_BYTES = 1 << 20, 1 << 16
"""Of messages taken at a time, the last one not counted."""
RECONNECT_MILLISECONDS = 20


class EngineEnvelope(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    body: ToEngine


class FrontendEnvelope(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    body: ToFrontend


E = TypeVar("E", EngineEnvelope, FrontendEnvelope)


class FrameDecoder(Generic[E]):
    """Decodes frames; a malformed one is logged and skipped, it never raises."""

    def __init__(self, kind: type[E], side: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._side = side
        self.malformed = 0

    def read(self, frame: bytes) -> E | None:
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
            self.malformed += 1
            log.error("%s dropped a malformed message: %s", self._side, str(error)[:200])
            return None


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MILLISECONDS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 0)  # an engine that loads answers when it has loaded
    return socket


def frontend_identity(frontend: int) -> bytes:
    """What the engine's socket knows a frontend by."""
    return b"%d" % frontend


def take_frames(socket: zmq.Socket[bytes], room: int) -> tuple[list[bytes], bool]:
    """What has arrived, without waiting and without the senders' names, until it has `room` bytes;
    and whether that was all."""
    frames: list[bytes] = []
    try:
        while room > 0 and len(frames) < MAX_BATCH:
            frames.append(socket.recv_multipart(zmq.NOBLOCK)[-1])
            room -= len(frames[-1])
    except zmq.Again:
        return frames, True
    return frames, False


class LiveKeys:
    """Which requests of which frontend the engine still works on.

    When a frontend dies nobody else knows what to cancel for it."""

    def __init__(self) -> None:
        self._keys: dict[int, set[int]] = {}
        self._gone: set[int] = set()

    def has_reader(self, message: ToEngine) -> bool:
        """False for what a frontend sent before it died: nobody waits for the answer."""
        gone = self._gone
        return not (gone and isinstance(message, Request) and message.key >> KEY_SHIFT in gone)

    def record_received(self, message: ToEngine) -> None:
        if isinstance(message, Request):
            self._keys.setdefault(message.key >> KEY_SHIFT, set()).add(message.key)
        elif isinstance(message, Cancel) and message.finished:
            for key in message.keys:
                self._keys.get(key >> KEY_SHIFT, set()).discard(key)

    def record_sent(self, frontend: int, message: ToFrontend) -> None:
        keys = self._keys.get(frontend)
        if keys and isinstance(message, Deltas):
            keys.difference_update([d.key for d in message.deltas if d.finish is not None])

    def forget(self, frontend: int) -> list[int]:
        """The requests of a frontend that died; none of it that come later have a reader."""
        self._gone.add(frontend)
        return sorted(self._keys.pop(frontend, set()))


class EngineMailbox:
    """The engine's end; used by one thread, except `post` and `wake`, which any thread may call.

    `listening`: the descriptor of the engine's socket; it stays the caller's. `to_supervisor` gets
    what is addressed to the frontend index `SUPERVISOR`."""

    def __init__(
        self,
        listening: int,
        *,
        epoch: int = 0,
        to_supervisor: Callable[[ToFrontend], None] | None = None,
    ) -> None:
        self.epoch = epoch
        self.stale = 0
        self._to_supervisor = to_supervisor
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = open_socket(self._context, zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.USE_FD, os.dup(listening))
        self._socket.bind("ipc://inherited")
        self._posted: deque[ToEngine] = deque()
        self._departures: deque[int] = deque()
        self._live = LiveKeys()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ringing = threading.Lock()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)
        self._reader = FrameDecoder(EngineEnvelope, "engine")
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, wait: float | None) -> list[ToEngine]:
        """Messages of this engine's epoch, oldest first. `wait` in seconds: None = until
        something comes (or somebody rings with `wake`), 0 = do not wait."""
        if wait is None or wait > 0:
            self._poller.poll(None if wait is None else math.ceil(wait * 1000))
            self._hush()
        messages = [self._posted.popleft() for _ in range(len(self._posted))]
        for frame in take_frames(self._socket, ENGINE_BYTES)[0]:
            envelope = self._reader.read(frame)
            if envelope is None:
                continue
            if envelope.epoch == self.epoch:
                messages.append(envelope.body)
            else:
                self.stale += 1
        messages = [message for message in messages if self._live.has_reader(message)]
        for message in messages:
            self._live.record_received(message)
        return messages + self._cancel_departed()

    def send(self, frontend: int, message: ToFrontend) -> None:
        """Never blocks. For a frontend that is gone it does nothing."""
        if frontend == SUPERVISOR:
            if self._to_supervisor is not None:
                self._to_supervisor(message)
            return
        if frontend > SUPERVISOR:
            return
        self._live.record_sent(frontend, message)
        frame = self._encoder.encode(FrontendEnvelope(self.epoch, message))
        self._socket.send_multipart((frontend_identity(frontend), frame), zmq.NOBLOCK)

    def post(self, message: ToEngine) -> None:
        """Put in a message from within this process, from any thread."""
        self._posted.append(message)
        self.wake()

    def wake(self) -> None:
        """Let a waiting `receive` return. From any thread; once this is closed, nobody waits."""
        with self._ringing:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def frontend_died(self, frontend: int) -> None:
        """Cancel what that frontend had running; its index never comes back. From any thread."""
        self._departures.append(frontend)
        self.wake()

    def close(self) -> None:
        self._socket.close(linger=200)
        self._context.term()
        with self._ringing:  # its number may be another file's at once
            os.close(self._bell)
            self._bell = -1

    def _hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _cancel_departed(self) -> list[ToEngine]:
        cancels: list[ToEngine] = []
        while self._departures:
            frontend = self._departures.popleft()
            keys = self._live.forget(frontend)
            if keys:
                cancels.append(Cancel(keys=keys, finished=True))
            cancels.append(LastRequest(frontend))
        return cancels


class FrontendMailbox:
    """A frontend's end, on the running asyncio loop. `engine`: the descriptor to connect by.

    `epoch` is the engine's, learned from its `Ready`; what is sent before that reaches no engine,
    so a frontend sends its live requests (again) when it gets `Ready`. `on_send` is called
    before each message goes out: the engine may have read it, and rest again, when `send`
    returns."""

    def __init__(
        self,
        engine: int,
        index: int,
        *,
        epoch: int = -1,
        on_send: Callable[[], None] = lambda: None,
    ) -> None:
        self.epoch = epoch
        self.stale = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = open_socket(self._context, zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, frontend_identity(index))
        self._socket.connect(address(engine))
        self._on_send = on_send
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._reader = FrameDecoder(FrontendEnvelope, f"frontend {index}")
        self._encoder = msgspec.msgpack.Encoder()
        self._arrived: list[ToFrontend] = []
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, message: ToEngine) -> None:
        """Never blocks, in the order of the calls."""
        frame = self._encoder.encode(EngineEnvelope(self.epoch, message))
        self._on_send()
        self._socket.send(frame, zmq.NOBLOCK)
        # Sending may take note of what has arrived; then the descriptor does not tell of it.
        if self._loop is not None and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._readable)

    async def deliver(self, take: Callable[[ToFrontend], None]) -> None:
        """Call `take` with every message, oldest first, until cancelled."""
        while True:
            for message in await self.receive():
                take(message)

    async def receive(self) -> list[ToFrontend]:
        """Everything that has arrived, at least one message. One reader at a time."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._descriptor, self._readable)
            self._readable()
        while not self._arrived:
            self._waiter = self._loop.create_future()
            await self._waiter
        arrived, self._arrived = self._arrived, []
        return arrived

    def accept(self, message: ToFrontend) -> None:
        """Put in a message that came another way (the supervisor's `Ready` and `EngineDown`)."""
        self._keep(message, self.epoch)
        self._notify()

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=200)
        self._context.term()

    def _readable(self) -> None:
        # The descriptor is edge triggered: whoever is called must take all there is, or be called
        # again.
        if self._socket.closed:
            return
        frames, all_taken = take_frames(self._socket, FRONTEND_BYTES)
        for frame in frames:
            envelope = self._reader.read(frame)
            if envelope is not None:
                self._keep(envelope.body, envelope.epoch)
        if not all_taken and self._loop is not None:
            self._loop.call_soon(self._readable)
        self._notify()

    def _keep(self, message: ToFrontend, epoch: int) -> None:
        if isinstance(message, Ready):
            epoch = self.epoch = max(self.epoch, message.epoch)
        if epoch >= self.epoch:
            self._arrived.append(message)
        else:
            self.stale += 1

    def _notify(self) -> None:
        if self._arrived and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LocalMailbox:
    """The same interface inside one process, without bytes: offline API and tests.

    The engine's side calls `receive` and `send`; the other side `post`s and `collect`s, or gives
    `deliver`, which is called with every message at once."""

    def __init__(self, deliver: Callable[[ToFrontend], None] | None = None) -> None:
        self._deliver = deliver
        self._to_engine: deque[ToEngine] = deque()
        self._to_frontend: deque[ToFrontend] = deque()
        self._bell = threading.Event()

    def post(self, message: ToEngine) -> None:
        self._to_engine.append(message)
        self._bell.set()

    def wake(self) -> None:
        self._bell.set()

    def receive(self, wait: float | None) -> list[ToEngine]:
        if not self._to_engine and wait != 0:
            self._bell.wait(wait)
        self._bell.clear()
        return [self._to_engine.popleft() for _ in range(len(self._to_engine))]

    def send(self, frontend: int, message: ToFrontend) -> None:
        if self._deliver is not None:
            self._deliver(message)
        else:
            self._to_frontend.append(message)

    def collect(self) -> list[ToFrontend]:
        """What the engine has sent since the last call (without `deliver`)."""
        return [self._to_frontend.popleft() for _ in range(len(self._to_frontend))]
