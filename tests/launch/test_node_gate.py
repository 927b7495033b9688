"""How the first node waits for the others, which are played here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from served_toy import free_port, write_toy_llama

from vivace.config.config import Config
from vivace.config.parsing import parse
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.launch.handshake import Intent, call
from vivace.launch.node_hello import cluster_key, hello
from vivace.launch.node_messages import NodeEnd, NodeRankDied, NodeSetup, ToNode
from vivace.launch.nodes import other_nodes
from vivace.platforms.cpu.library import LIBRARY
from vivace.protocol.message_socket import MessageSocket

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="nodes need the native kernels")
KEY = "k" * 32


def make_config(folder: Path, *flags: str) -> Config:
    where = f"127.0.0.1:{free_port()}"
    words = ("--model-path", str(write_toy_llama(folder)), "--dist-init-addr", where, *flags)
    return configure(parse([*words, "--skip-tokenizer-init"], {"VIVACE_CLUSTER_KEY": KEY}))


def join(config: Config, node: int) -> MessageSocket[ToNode]:
    where = str(config.parallel.dist_init_addr).split(":")
    sock = call((where[0], int(where[1])), cluster_key(config), Intent(0, 0, node))
    control = MessageSocket(sock, msgspec.msgpack.Decoder(ToNode))
    control.send(hello(config))
    assert isinstance(control.wait(10), NodeSetup)
    return control


def test_a_node_whose_rank_dies_while_another_is_awaited_joins_again(tmp_path: Path) -> None:
    """And the first one says why, where nobody came in time."""
    config = make_config(tmp_path, "--tp-size", "4", "--nnodes", "4", "--dist-timeout", "4")
    gate, said = other_nodes(config), list[str]()
    with ThreadPoolExecutor(1) as pool:
        gathered = pool.submit(gate.gather, lambda stage, part: said.append(stage))
        first = join(config, 1)
        first.send(NodeRankDied(1, "killed by SIGKILL", reported=False, noticed=False))
        end = first.wait(3)
        assert isinstance(end, NodeEnd)
        assert "killed by SIGKILL" in end.cause
        again = join(config, 1)
        again.send(NodeRankDied(1, "killed by SIGSEGV", reported=False, noticed=False))
        with pytest.raises(CannotStart, match="SIGSEGV"):
            gathered.result(20)
    assert said[0] == "Waiting for nodes 1, 2, 3"
    for control in (first, again):
        control.close()
