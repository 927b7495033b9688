"""`vivace bench`: each benchmark is a module of `vivace.bench` with a `main`."""

from __future__ import annotations

from collections.abc import Callable

from vivace.commands import help_text, unknown_word
from vivace.errors import CANNOT_START
from vivace.registry import Registry

BENCHES = {
    "serving": "a running server under load (or: python -m vivace.bench_serving)",
    "offline": "throughput of the engine in one process",
    "one-batch": "one batch: prefill and decode time",
    "speculative": "answers with drafts beside answers without",
    "scheduler": "time to plan and commit a step",
    "check": "time of `vivace check`, with the interpreter's start",
    "kernels": "the CPU's linear layers beside the machine's limits",
    "collectives": "what ranks exchange over shared memory, beside gloo",
    "broadcast": "how fast the ranks of an engine hear of a step",
    "peers": "this server against others on the same workload",
    "sse": "CPU time of a streamed chunk in the frontend",
    "soak": "many streams with random aborts: nothing may leak or fail",
}
HANDLERS: Registry[Callable[[list[str]], int]] = Registry(
    "benchmark",
    {name: f"vivace.bench.{name.replace('-', '_')}:main" for name in BENCHES}
    | {"peers": "vivace.bench.peers.run:main"},
)


def main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(help_text("vivace bench", "BENCHMARK", BENCHES))
        return 0 if words else CANNOT_START
    if words[0] not in BENCHES:
        return unknown_word("vivace bench", "benchmark", words[0], BENCHES)
    return HANDLERS.get(words[0])(words[1:])
