"""The command line of `vivace bench peers`."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import vivace
from vivace.arguments import ArgumentParser, named_path
from vivace.bench.environment import host_facts
from vivace.bench.errors import BenchError, run_benchmark
from vivace.bench.flags import result_file
from vivace.bench.peers.compare import Comparison, Rules, compare
from vivace.bench.peers.llama_cpp import LLAMA_PEERS, LlamaCppPeer, embedded_gguf
from vivace.bench.peers.open_vino import OpenVinoPeer, Weights
from vivace.bench.peers.ours import OURS, VivacePeer
from vivace.bench.peers.peer import Peer, RunningPeer, run_server, run_shown
from vivace.bench.peers.scripted import ScriptedPeer
from vivace.bench.peers.summary import as_dict, render
from vivace.bench.peers.vllm_cpu import VLLM_PEERS, VllmCpuPeer
from vivace.bench.peers.workloads import DEFAULT, choose_workload
from vivace.bench.peers.workloads import NAMES as WORKLOAD_NAMES
from vivace.bench.record import write_figures
from vivace.bench.tokenizer import LocalCodec, SplitCodec, TokenCodec, ordinary_ids

PROGRAM = "vivace bench peers"
OPENVINO: dict[str, Weights] = {
    "openvino": "fp16",
    "openvino-int8": "int8",
    "openvino-int4": "int4",
}
NAMES = (*LLAMA_PEERS, *VLLM_PEERS, *OPENVINO, *OURS, "scripted")
EMBEDDED = Path("embedded")


def main(argv: list[str]) -> int:
    args = parse(argv)
    return run_benchmark(PROGRAM, lambda: setup(args) if args.setup else measure(args, argv))


def setup(args: argparse.Namespace) -> int:
    """Install the named peer under --dir; every command is printed before it runs."""
    peer = make_peer(args.setup, args)
    args.dir.mkdir(parents=True, exist_ok=True)
    print(f"preparing {peer.name} under {args.dir}")
    peer.setup(args.dir, run_shown)
    problem = peer.missing(args.dir)
    if problem:
        raise BenchError(problem)
    print(f"{peer.name} {peer.version(args.dir)} is ready: vivace bench peers --dir {args.dir}")
    return 0


def check_installed(peers: Sequence[Peer], directory: Path) -> None:
    """Raises BenchError with how to get what is missing."""
    problems = [
        f"{problem}; run: vivace bench peers --setup {peer.name} --dir {directory}"
        for peer in peers
        if (problem := peer.missing(directory))
    ]
    if problems:
        raise BenchError("; ".join(problems))


def measure(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Start all servers, run the workloads in turn, print the table, write the JSON file."""
    peers = [make_first_peer(args), *(make_peer(name, args) for name in args.peer)]
    check_installed(peers, args.dir)
    codec: TokenCodec = SplitCodec() if args.ours == "scripted" else LocalCodec(None)
    rules = Rules(
        repetitions=args.repetitions,
        max_foreign=args.max_foreign,
        retries=args.retries,
        seed=args.seed or str(time.time_ns()),
    )
    args.logs.mkdir(parents=True, exist_ok=True)
    with ended_by_signals(), contextlib.ExitStack() as stack:
        servers = start_servers(peers, args, stack.enter_context)
        chosen = [choose_workload(name, codec) for name in args.workload]
        told = partial(print, flush=True)
        comparison = compare(servers, chosen, ordinary_ids(codec), rules, told)
    print(render(comparison, peers[0].name))
    if args.output_file:
        write(args, argv, servers, comparison, rules)
    return 1 if any(run.faults for run in comparison.runs) else 0


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the comparison as Ctrl-C does: the servers are stopped with it."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_servers(
    peers: Sequence[Peer], args: argparse.Namespace, enter: Callable[[Any], RunningPeer]
) -> list[RunningPeer]:
    servers = []
    for peer in peers:
        print(f"starting {peer.name} {peer.version(args.dir)}", flush=True)
        server = enter(run_server(peer, args.dir, args.logs, priority=args.priority))
        print(f"  ready after {server.seconds_to_ready:.1f} s: {shlex.join(server.command)}")
        print(f"  computed by: {server.instructions}")
        servers.append(server)
    return servers


def write(
    args: argparse.Namespace,
    argv: Sequence[str],
    servers: Sequence[RunningPeer],
    comparison: Comparison,
    rules: Rules,
) -> None:
    document = {
        "command": shlex.join(["vivace", "bench", "peers", *argv]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "vivace": vivace.__version__,
        "host": host_facts(),
        "seed": rules.seed,
        "max_foreign": rules.max_foreign,
        "servers": [
            {
                "name": server.peer.name,
                "version": server.peer.version(args.dir),
                "command": shlex.join(server.command),
                "seconds_to_ready": server.seconds_to_ready,
                "instructions": server.instructions,
            }
            for server in servers
        ],
        **as_dict(comparison, servers[0].peer.name),
    }
    path = Path(args.output_file)
    write_figures(path, document)
    print(f"written to {path}")


def make_first_peer(args: argparse.Namespace) -> Peer:
    if args.ours == "scripted":
        return ScriptedPeer("scripted-ours", backend="vivace")
    return make_peer(args.ours, args)


def make_peer(name: str, args: argparse.Namespace) -> Peer:
    flags = shlex.split(args.peer_flags)
    if name in OURS:
        return VivacePeer(shlex.split(args.vivace_flags), name)
    if name in LLAMA_PEERS:
        file = embedded_gguf() if args.gguf == EMBEDDED else args.gguf
        return LlamaCppPeer(flags, file, name)
    if name in VLLM_PEERS:
        return VllmCpuPeer(flags, name)
    if name in OPENVINO:
        return OpenVinoPeer(OPENVINO[name], flags)
    return ScriptedPeer(gap=0.001, connection_per_request=True, flags=flags)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Start this server and others, give them the same load in turn (A B A B ...), "
        "and compare medians. Nothing is installed unless --setup is given.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--setup", choices=NAMES, metavar="PEER", help="install it under --dir, say how, and end")
    add("--dir", type=named_path, default=Path("peers"), help="where peers and their models are")
    add(
        "--peer",
        nargs="+",
        choices=NAMES,
        metavar="PEER",
        default=["llama.cpp"],
        help=f"servers to compare with: {', '.join(NAMES)}; default: llama.cpp",
    )
    add(
        "--ours",
        choices=(*OURS, "scripted"),
        metavar="NAME",
        default="vivace",
        help=f"what is compared with them: {', '.join(OURS)}; default: vivace",
    )
    add(
        "--workload",
        nargs="+",
        choices=WORKLOAD_NAMES,
        metavar="NAME",
        default=list(DEFAULT),
        help=f"what to run: {', '.join(WORKLOAD_NAMES)}; default: {' '.join(DEFAULT)}",
    )
    add("--repetitions", type=int, default=3, help="runs per server and workload; default: 3")
    add("--max-foreign", type=float, default=0.06, help="CPU share of others that disturbs a run")
    add("--retries", type=int, default=4, help="disturbed runs that are repeated at most")
    add("--priority", action="store_true", help="highest scheduling weight for servers (root)")
    add("--vivace-flags", default="", help='flags of our servers, in one word: "--dtype bfloat16"')
    add("--peer-flags", default="", help="more flags of the peers, in one word")
    add("--gguf", type=named_path, help="GGUF file for llama.cpp; embedded: ours, as it is")
    add("--logs", type=named_path, default=Path("peer-logs"), help="folder for the servers' output")
    add("--seed", default="", help="of the prompts; default: new in every call")
    add("--output-file", type=result_file, default="", help="JSON file to write")
    args = parser.parse_args(argv)
    if args.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    if args.ours in OURS and args.ours in args.peer:
        parser.error(f"{args.ours} is --ours and a --peer: give another one")
    return args
