"""The loads that servers are compared under, and which figure counts for each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vivace.bench.metrics import MS, BenchmarkMetrics
from vivace.bench.peers.constrained import CONSTRAINED, ConstrainedWorkload
from vivace.bench.repeating_prompts import repeating_prompts
from vivace.bench.tokenizer import TokenCodec
from vivace.bench.workload import BenchRequest

REPEATING = "repeating"
REPEATED = "repeated"


class ComparedWorkload(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def output(self) -> int:
        """tokens of each answer"""
        ...

    @property
    def input_len(self) -> int:
        """tokens of the longest prompt"""
        ...

    def queries(self, ids: Sequence[int], seed: str) -> list[BenchRequest]:
        """The same for every server with the same seed. `ids`: ordinary ones of the vocabulary."""
        ...


@dataclass(frozen=True, kw_only=True)
class PeerWorkload:
    """Prompts of random token ids; no prompt is used twice, so only `shared` can be cached."""

    name: str
    title: str
    requests: int
    concurrency: int
    shared: int
    """Tokens that all prompts of one run begin with (new in every run)."""
    own: int
    """Tokens of each prompt's own."""
    output: int

    @property
    def input_len(self) -> int:
        return self.shared + self.own

    def queries(self, ids: Sequence[int], seed: str) -> list[BenchRequest]:
        """The same for every server with the same seed."""
        chance = random.Random(f"{seed}/{self.name}")
        prefix = chance.choices(ids, k=self.shared)
        return [
            BenchRequest(
                prompt=prefix + chance.choices(ids, k=self.own),
                input_len=self.input_len,
                output_len=self.output,
            )
            for _ in range(self.requests)
        ]


@dataclass(frozen=True, kw_only=True)
class RepeatingWorkload:
    """Chats whose answers repeat what they were given, in the model's template: for drafts. The
    same ones each time; where servers forget, this package's draft only from what was said with the
    same key."""

    prompts: Sequence[list[int]]
    name: str
    title: str
    forgets: bool
    concurrency: int = 1
    output: int = 128

    @property
    def input_len(self) -> int:
        return max(map(len, self.prompts))

    def queries(self, ids: Sequence[int], seed: str) -> list[BenchRequest]:
        extra = {"extra_key": seed} if self.forgets else {}
        return [
            BenchRequest(
                prompt=prompt,
                input_len=len(prompt),
                output_len=self.output,
                extra=extra,
            )
            for prompt in self.prompts
        ]


WORKLOADS: dict[str, PeerWorkload] = {
    workload.name: workload
    for workload in (
        PeerWorkload(
            name="single",
            title="one stream, 128 in, 128 out",
            requests=4,
            concurrency=1,
            shared=0,
            own=128,
            output=128,
        ),
        PeerWorkload(
            name="prefill",
            title="one stream, 1024 in, 1 out",
            requests=4,
            concurrency=1,
            shared=0,
            own=1024,
            output=1,
        ),
        PeerWorkload(
            name="concurrent",
            title="64 requests, 32 at once, 256 in, 128 out",
            requests=64,
            concurrency=32,
            shared=0,
            own=256,
            output=128,
        ),
        PeerWorkload(
            name="shared",
            title="64 requests, 16 at once, 768 shared + 32 in, 32 out",
            requests=64,
            concurrency=16,
            shared=768,
            own=32,
            output=32,
        ),
    )
}
TITLES = {name: load.title for name, load in {**WORKLOADS, **CONSTRAINED}.items()} | {
    REPEATING: "three chats whose answers repeat them, one by one, 128 out",
    REPEATED: "the same chats, whose answers servers may know from the run before",
}
NAMES = tuple(TITLES)
DEFAULT = ("single", "concurrent", "shared")


def choose_workload(name: str, codec: TokenCodec) -> ComparedWorkload:
    if name in WORKLOADS:
        return WORKLOADS[name]
    if name in CONSTRAINED:
        return ConstrainedWorkload(name=name, load=CONSTRAINED[name], codec=codec)
    return RepeatingWorkload(
        prompts=repeating_prompts(codec),
        name=name,
        title=TITLES[name],
        forgets=name == REPEATING,
    )


def compared_figures(workload: ComparedWorkload, metrics: BenchmarkMetrics) -> dict[str, float]:
    """The figures of one run. Names with "ms" are better when lower, the others when higher."""
    values: dict[str, float] = {}
    if workload.concurrency == 1 and workload.output > 1:
        values["decode tok/s"] = MS / metrics.tpot.mean if metrics.tpot.mean else 0.0
    if workload.concurrency == 1 and workload.output == 1:
        values["prefill tok/s"] = workload.input_len * MS / metrics.ttft.mean
    if workload.concurrency > 1:
        values["total tok/s"] = metrics.total_throughput
        values["output tok/s"] = metrics.output_throughput
    values["median TTFT ms"] = metrics.ttft.median
    if workload.output > 1:
        values["median TPOT ms"] = metrics.tpot.median
        values["p99 ITL ms"] = metrics.itl.p99
    return values


def is_latency(name: str) -> bool:
    return name.endswith(" ms")
