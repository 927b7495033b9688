"""Two nodes of one server, each with its own `vivace serve`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from running_server import RunningServer, find_children, free_port
from seeded_streams import FLAGS

STAGES = ("--tp-size", "2", "--pp-size", "2")
"""each node has a stage"""
ENGINES = (
    *("--tp-size", "4", "--dp-size", "2", "--enable-dp-attention", "--moe-a2a-backend", "deepep"),
    *("--ep-num-redundant-experts", "4", "--enable-eplb", "--eplb-rebalance-num-iterations", "20"),
)
"""each node has an engine"""
SEEDS = range(4)
KEY = "a key that all nodes of a test know".replace(" ", "-")


class Nodes:
    """Starts nodes of one server, of which there are to be two."""

    def __init__(
        self, folder: Path, logs: Path, layout: Sequence[str] = ("--tp-size", "2")
    ) -> None:
        self._logs = logs
        self.address = f"127.0.0.2:{free_port()}"
        self._flags = (
            *("--model-path", str(folder), *layout, "--nnodes", "2", "--dist-timeout", "60"),
            *FLAGS,
        )
        self._stack = contextlib.ExitStack()

    def start(
        self,
        rank: int,
        *flags: str,
        key: str = KEY,
        through: Sequence[str] = (),
        fault: str = "",
        crashes: int = 50,
    ) -> RunningServer:
        """Flags that are given twice count as given last. `fault`: vivace/launch/faults.py."""
        name = f"node{rank}-{len(list(self._logs.iterdir()))}"
        return self._stack.enter_context(
            RunningServer(
                *self._flags,
                *("--dist-init-addr", self.address, "--node-rank", str(rank), *flags),
                log=self._logs / name,
                environment={"VIVACE_CLUSTER_KEY": key, "VIVACE_TEST_FAULT": fault},
                crashes=crashes,
                through=through,
            )
        )

    def close(self) -> None:
        self._stack.close()


def find_rank(node: RunningServer) -> int:
    """The process of the only rank behind the first, of a node that runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if rank := find_children(node.process.pid).get("rank"):
            return rank
        time.sleep(0.05)
    raise AssertionError(node.text())


def list_ranks(node: RunningServer) -> set[int]:
    """Their processes, of a node behind the first."""
    parent, children = node.process.pid, set[int]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = file.read_text().rpartition(") ")
            if "(rank " in name and int(rest.split()[1]) == parent:
                children.add(int(file.parent.name))
    return children


def wait_for(node: RunningServer, text: str, seconds: float = 10.0, times: int = 1) -> float:
    """Seconds until the log has it so often."""
    began = time.monotonic()
    while node.text().count(text) < times:
        assert time.monotonic() - began < seconds, f"no {text!r} in\n{node.text()[-4000:]}"
        time.sleep(0.02)
    return time.monotonic() - began
