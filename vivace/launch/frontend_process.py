"""A frontend process: HTTP on the inherited socket, text <-> tokens, the channel to the engine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import vivace
from vivace.config.config import Config
from vivace.config.serialize import decode
from vivace.errors import CANNOT_START, FAILED
from vivace.frontend.engine_status import BALANCES, EngineView
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import served_model
from vivace.frontend.tokenizer import configured_tokenizer
from vivace.launch.faults import Inbox, with_frontend_fault
from vivace.observability import log as log_lines
from vivace.observability.crash_dump import CrashDump
from vivace.observability.gc_pauses import watch_gc
from vivace.observability.timeline import Timeline
from vivace.platforms.cpu.allocator import return_freed_blocks, return_large_blocks
from vivace.protocol.channel import FrontendMailbox
from vivace.protocol.heartbeat import EngineProgress, FrontendHeartbeat
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.messages import (
    ABORTED,
    FINISH_ABORT,
    Cancel,
    Deltas,
    Draining,
    EngineDown,
    Finish,
    Ready,
    Request,
    SamplingParams,
    ToEngine,
    ToFrontend,
)
from vivace.protocol.shared_memory import SharedMemory, attach
from vivace.protocol.tasks import Generate
from vivace.server.app import build_app, start_site, stop_site
from vivace.supervisor.messages import (
    LiveRequests,
    Serving,
    Setup,
    Started,
    StartupStages,
    Stop,
    ToChild,
    Warm,
    WarmUp,
)
from vivace.tool_servers.servers import ToolServers

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 8
WARM_UP_SECONDS = 600.0
BEAT_SECONDS = 0.5
DAMAGED = (
    "the model computes NaN or infinite logits: its weights are damaged, or --dtype is too narrow "
    "for them. Fetch its files again, or give another --dtype"
)


async def run_frontend(control: MessageSocket[ToChild], setup: Setup, timeline: Timeline) -> None:
    """Serve until stopped. Raises what ends the frontend."""
    return_large_blocks()  # bodies, and answers with many log-probabilities
    timeline.begin("reading the configuration")
    config = decode(setup.config)
    workers = max(1, config.model.tokenizer_worker_num)
    role = f"frontend {setup.index}" if workers > 1 else "frontend"
    log_lines.setup(config.logging.log_level, role)
    watch_gc(config.logging.gc_warning_threshold_secs)
    memory = attach(setup.memory, setup.count)
    heartbeat = FrontendHeartbeat(memory.heartbeat(setup.place))
    heartbeat.begin()
    dump = crash_dump(config, setup.index)
    mailboxes, engines = open_engines(setup, memory, heartbeat, dump)
    timeline.begin("tokenizer")
    tokenizer = configured_tokenizer(config)
    frontend = Frontend(
        served_model(config, tokenizer),
        tokenizer,
        engines,
        balance=BALANCES[config.parallel.load_balance_method](),
        index=setup.index,
        release=return_freed_blocks,
    )
    frontend.engine.warming_up = True
    fault = config.environment.get("VIVACE_TEST_FAULT", "")
    inbox = with_frontend_fault(Inboxes(mailboxes), fault, setup.index)
    child = FrontendChild(control, inbox, frontend, dump)
    asyncio.get_running_loop().add_reader(control.fileno(), child.on_message)
    child.on_message()  # what came together with the setup
    feeding = asyncio.create_task(child.run_until_stopped())
    tools = ToolServers(() if config.model.is_embedding else config.http.tool_servers)
    timeline.begin("HTTP")
    app = build_app(frontend, config, memory, setup.place, tools, setup.responses)
    runner = await start_site(app, socket.socket(fileno=setup.listener))
    gc.collect()
    gc.freeze()
    gc.enable()
    return_freed_blocks()
    beats = asyncio.create_task(beat(heartbeat))
    told = await connect_tools(tools, timeline, again=setup.index >= workers)
    control.send(StartupStages(timeline.stages()))
    control.send(Serving(told))
    await feeding
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop_site(runner), child.grace + 1)
    await tools.close()
    beats.cancel()
    for mailbox in mailboxes:
        mailbox.close()


async def connect_tools(tools: ToolServers, timeline: Timeline, *, again: bool) -> list[str]:
    """What each tool server has. Raises CannotStart where one is not there; a frontend that follows
    one that has died (`again`) asks them when it needs them."""
    if again or not tools:
        return []
    timeline.begin("tool servers")
    try:
        return await tools.connect()
    except BaseException:
        await tools.close()
        raise


def open_engines(
    setup: Setup, memory: SharedMemory, heartbeat: FrontendHeartbeat, dump: CrashDump | None
) -> tuple[list[FrontendMailbox], list[EngineView]]:
    """The connection to each engine, and what the frontend sees of it."""
    mailboxes, views = [], []
    for index, engine in enumerate(setup.engines):
        sent = partial(heartbeat.mark_sent, index)
        mailbox = FrontendMailbox(engine, setup.index, on_send=sent)
        send = mailbox.send if dump is None else with_record(mailbox.send, dump)
        mailboxes.append(mailbox)
        views.append(EngineView(send, index, EngineProgress(memory, index)))
    return mailboxes, views


class Inboxes:
    """What comes from all engines. What the supervisor says of one stands behind what that one has
    sent."""

    def __init__(self, mailboxes: Sequence[FrontendMailbox]) -> None:
        self._mailboxes = mailboxes

    async def deliver(self, take: Callable[[ToFrontend], None]) -> None:
        async with asyncio.TaskGroup() as group:
            for mailbox in self._mailboxes:
                group.create_task(mailbox.deliver(take))

    def accept(self, message: Ready | EngineDown | Draining) -> None:
        engine = None if isinstance(message, Draining) else message.engine
        self._mailboxes[engine or 0].accept(message)


class FrontendChild:
    """Passes on what comes from engine and supervisor."""

    def __init__(
        self,
        control: MessageSocket[ToChild],
        mailbox: Inbox,
        frontend: Frontend,
        dump: CrashDump | None,
    ) -> None:
        self.grace = 0.0
        self._control = control
        self._mailbox = mailbox
        self._frontend = frontend
        self._take = frontend.feed if dump is None else with_answers(frontend.feed, dump)
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self) -> None:
        """The supervisor has something to say; when it is gone, so is this process."""
        try:
            messages = self._control.receive()
        except SocketClosed:
            os._exit(1)
        for message in messages:
            match message:
                case Ready() | EngineDown():
                    self._mailbox.accept(message)
                case Started():
                    self._frontend.engine.warming_up = False
                case Draining():
                    self._mailbox.accept(message)
                    self._run(self._drain())
                case WarmUp():
                    self._run(self._warm_up())
                case Stop():
                    self.grace = message.grace
                    self._stopped.set()
                case _:
                    log.error("a frontend has no use for %s", type(message).__name__)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        told = None
        while told != 0:
            if self._frontend.live != told:
                told = self._frontend.live
                self._control.send(LiveRequests(told))
            await asyncio.sleep(0.02)

    async def run_until_stopped(self) -> None:
        feeding = asyncio.create_task(self._mailbox.deliver(self._take))
        stopping = asyncio.create_task(self._stopped.wait())
        done, _ = await asyncio.wait({feeding, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if feeding in done:
            feeding.result()
        await self._idle(self.grace)
        self._frontend.stop()
        feeding.cancel()

    async def _idle(self, grace: float) -> None:
        """Wait until every request is answered, at most `grace` seconds."""
        deadline, frontend = time.monotonic() + grace, self._frontend
        while (frontend.accepted or frontend.live) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def _warm_up(self) -> None:
        started, code = time.monotonic(), FAILED
        try:
            finish = await asyncio.wait_for(warm_up(self._frontend), WARM_UP_SECONDS)
            problem = finish.message or "it was aborted" if finish else ""
            if finish and finish.bad_numbers:
                problem, code = f"{self._frontend.served.path}: {DAMAGED}", CANNOT_START
        except Exception as error:
            log.exception("warm-up")
            problem = f"{type(error).__name__}: {error}"
        self._control.send(Warm(problem, time.monotonic() - started, code))


async def warm_up(frontend: Frontend) -> Finish | None:
    """Generate a little through the whole engine; returns the end if it is no good one."""
    await frontend.engine.settled()
    count = max(1, min(WARM_UP_TOKENS, frontend.served.context // 2))
    tokens = [index % frontend.served.vocabulary for index in range(count)]
    task = frontend.served.task
    drawn = count if isinstance(task, Generate) else 0
    request = frontend.request(
        tokens,
        SamplingParams(max_new_tokens=drawn, temperature=0.0),
        rid="HEALTH_CHECK_warm_up",
        log_metrics=False,
        task=task,
    )
    finish = None
    async for output in frontend.generate(request):
        finish = output.finish
    finish = finish or ABORTED
    return finish if finish.type == FINISH_ABORT else None


def crash_dump(config: Config, index: int) -> CrashDump | None:
    folder = config.logging.crash_dump_folder
    if not folder:
        return None
    loop = asyncio.get_running_loop()
    return CrashDump(
        Path(folder),
        version=vivace.__version__,
        index=index,
        background=lambda save: loop.run_in_executor(None, save),
    )


async def beat(heartbeat: FrontendHeartbeat) -> None:
    """Show that the event loop turns."""
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_SECONDS)


def with_record(send: Callable[[ToEngine], None], dump: CrashDump) -> Callable[[ToEngine], None]:
    """`send` that also remembers for the crash dump."""

    def send_and_remember(message: ToEngine) -> None:
        if isinstance(message, Request):
            dump.add(message)
        elif isinstance(message, Cancel):
            dump.forget(message.keys)
        send(message)

    return send_and_remember


def with_answers(
    take: Callable[[ToFrontend], None], dump: CrashDump
) -> Callable[[ToFrontend], None]:
    """`take` that also remembers for the crash dump, or writes it."""

    def remember_and_take(message: ToFrontend) -> None:
        if isinstance(message, Deltas):
            for delta in message.deltas:
                dump.finish(delta)
        elif isinstance(message, EngineDown):
            dump.blame(message.refused, f"it killed the engine: {message.reason}")
            dump.write(f"the engine went down: {message.reason}")
        take(message)

    return remember_and_take
