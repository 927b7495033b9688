"""A child process without engine or HTTP; what it does is in `Setup.config` (JSON).

{"engine": {"0": "exit"}, "frontend": {"0": "kill"}}: the engine of epoch 0 exits after it became
ready, frontend 0 is killed. Everything it is told it appends to `events` in the script's `folder`.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from vivace.errors import CANNOT_START
from vivace.protocol.heartbeat import EngineHeartbeat, FrontendHeartbeat, Span
from vivace.protocol.message_socket import SocketClosed
from vivace.protocol.messages import Capacity, Command, Draining, EngineDown, Ready, Reply
from vivace.protocol.ranks import NodePresence
from vivace.protocol.shared_memory import attach
from vivace.supervisor.ipc import child_end
from vivace.supervisor.messages import (
    Failure,
    LiveRequests,
    Progress,
    Serving,
    Setup,
    Stop,
    ToChild,
    Warm,
    WarmUp,
)

EXITS = {
    "exit-while-warming": "WarmUp",
    "exit-when-started": "Started",
    "exit-when-stopped": "Stop",
}
"""of engines, when somebody is told so"""
CAPACITY = Capacity(pages=8, page_size=16, rows=4, context=64, vocabulary=100)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("--control", type=int)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control = child_end(socket.socket(fileno=arguments.control))
    setup = control.wait()
    assert isinstance(setup, Setup)
    engine = arguments.role == "engine"
    number = setup.epoch if engine else setup.index
    config = json.loads(setup.config)
    folder = Path(config["folder"])
    script = config.get(arguments.role, {})
    act = script.get(str(number), script.get("*", ""))
    events = folder / "events"

    def note(text: str) -> None:
        with events.open("a") as file:
            file.write(f"{arguments.role} {number} {os.getpid()} {text}\n")

    note("start")
    if act == "fail-when-served":
        while "Serving" not in events.read_text():
            time.sleep(0.02)
        control.send(Failure("ValueError: no such tensor"))
        sys.exit(1)
    if act == "start-when-drained":
        while " Draining" not in events.read_text():
            time.sleep(0.02)
    if act == "never-start":
        threading.Event().wait()
    if act.startswith("node-joins"):
        control.send(NodePresence(1, here=True))
    if act == "lose-node":
        control.send(Failure("NodeGone: node 1 was stopped", passing=True))
        sys.exit(1)
    if act == "stop-itself":
        os.kill(os.getpid(), signal.SIGSTOP)
    if act == "fail-start":
        control.send(Failure("ValueError: no such tensor"))
        sys.exit(1)
    if act == "wrong-input":
        control.send(Failure("toy.gguf: truncated"))
        sys.exit(CANNOT_START)
    memory = attach(setup.memory, setup.count)
    if engine:
        heartbeat = EngineHeartbeat(memory.engine(setup.index))
        heartbeat.begin()
        control.send(Progress("Loading", 0.5))
        if act == "no-memory":
            control.send(Progress("Capturing decode steps", 0.5))
            control.send(Failure("RuntimeError: DefaultCPUAllocator: can't allocate memory"))
            sys.exit(1)
        if act == "hang":
            heartbeat.schedule()
        if act == "at-work":
            threading.Thread(target=work_for_ever, args=(heartbeat,), daemon=True).start()
        control.send(Ready(epoch=number, capacity=CAPACITY, engine=setup.index))
        if awaited := EXITS.get(act):
            threading.Thread(target=exit_when, args=(events, awaited), daemon=True).start()
        if act.startswith("die-with"):
            while not (folder / "go").exists():
                time.sleep(0.02)
            keys = json.loads(act.removeprefix("die-with"))
            heartbeat.step(1, len(keys), 1.0, [Span(key, 1) for key in keys])
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        heartbeat = FrontendHeartbeat(memory.heartbeat(setup.place))
        heartbeat.begin()
        if act != "hang":
            threading.Thread(target=beat_for_ever, args=(heartbeat,), daemon=True).start()
        if act == "hear-first":
            note(type(control.wait()).__name__)
        control.send(Serving())
        if act == "tell-serving":
            note("Serving")
    misbehave(act)
    try:
        while True:
            message = control.wait()
            note(told(message))
            match message:
                case WarmUp():
                    if act == "die-warming":
                        os._exit(7)
                    if act != "slow-warm":
                        problem = "NaN" if act in ("cold", "bad-model") else ""
                        control.send(Warm(problem, 0.1, 2 if act == "bad-model" else 1))
                case Ready(epoch=1) if act == "slow-warm":
                    control.send(Warm("", 0.1))
                case Draining() if act != "waiting":
                    control.send(LiveRequests(3 if act == "answering" else 0))
                    if act == "answering":
                        note("LiveRequests")
                case Command():
                    if act not in ("busy", "at-work"):
                        control.send(Reply(ticket=message.ticket, ok=True))
                case Stop() if act != "deaf":
                    return
    except SocketClosed:
        os._exit(1)


def told(message: ToChild) -> str:
    match message:
        case Ready():
            return f"Ready {message.epoch}"
        case EngineDown() if message.refused or message.suspects:
            return f"EngineDown {message.refused}"
        case Stop() if message.cause:
            return f"Stop {message.cause}"
    return type(message).__name__


def exit_when(events: Path, told: str) -> None:
    while told not in events.read_text():
        time.sleep(0.02)
    os._exit(7)


def beat_for_ever(heartbeat: FrontendHeartbeat) -> None:
    while True:
        heartbeat.beat()
        time.sleep(0.02)


def work_for_ever(heartbeat: EngineHeartbeat) -> None:
    while True:
        heartbeat.repeat_step(1, 1, 0.5)
        time.sleep(0.02)


def misbehave(act: str) -> None:
    if act in ("exit", "kill", "node-joins"):
        time.sleep(0.3)
    if act in ("exit", "node-joins"):
        os._exit(7)
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
