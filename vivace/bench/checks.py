"""Identities every result must satisfy. A broken one means the figures cannot be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vivace.bench.transport import Record

RELATIVE = 1e-6
SLACK = 1e-6
"""Seconds by which sums of times may differ from their total."""


@dataclass(frozen=True, slots=True)
class Check:
    """One identity: both sides, and whether they agree."""

    name: str
    left: float
    right: float
    holds: bool

    def __str__(self) -> str:
        sign = "=" if self.holds else "IS NOT"
        return f"{self.name}: {self.left:g} {sign} {self.right:g}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "left": self.left, "right": self.right, "holds": self.holds}


def check_result(result: Mapping[str, Any]) -> list[Check]:
    """Identities among the figures of a JSONL record; usable on a record read from a file.

    With the per-request lists of --output-details their sums are compared too.
    """
    return [*_check_aggregates(result), *_details(result)]


def check_requests(
    result: Mapping[str, Any],
    records: Sequence[Record],
    *,
    exact_lengths: bool = True,
    plain_prompts: bool = True,
) -> list[Check]:
    """Identities between the figures and the requests they were made from.

    `exact_lengths`: every answer must have as many tokens as asked (ignore_eos).
    `plain_prompts`: the server adds no template, so both sides must count the same prompt.
    """
    found = [*_sums(result, records), *_each(records, exact_lengths)]
    return [*found, *_check_prompts(records)] if plain_prompts else found


def _check_aggregates(r: Mapping[str, Any]) -> Iterator[Check]:
    duration = r["duration"]
    tokens = r["total_input_tokens"] + r["total_output_tokens"]
    yield _close(
        "input + output = total throughput x duration", tokens, r["total_throughput"] * duration
    )
    yield _close(
        "input + output throughput = total throughput",
        r["input_throughput"] + r["output_throughput"],
        r["total_throughput"],
    )
    yield _close(
        "requests = request throughput x duration",
        r["completed"],
        r["request_throughput"] * duration,
    )
    yield _close(
        "input tokens = input throughput x duration",
        r["total_input_tokens"],
        r["input_throughput"] * duration,
    )
    yield _close(
        "output tokens = output throughput x duration",
        r["total_output_tokens"],
        r["output_throughput"] * duration,
    )
    yield _close(
        "concurrency x duration = requests x mean latency",
        r["concurrency"] * duration,
        r["completed"] * r["mean_e2e_latency_ms"] / 1000.0,
    )
    parts = r["total_input_text_tokens"] + r["total_input_vision_tokens"]
    yield _close("text + vision tokens = input tokens", parts, r["total_input_tokens"])
    limit = r.get("max_concurrency")
    if limit:
        yield _at_most("concurrency <= its limit", r["concurrency"], limit)
    yield _at_most("mean TTFT <= mean latency", r["mean_ttft_ms"], r["mean_e2e_latency_ms"])
    yield _close("completed + failed = sent", r["completed"] + r["failed"], r["requests_sent"])


def _details(r: Mapping[str, Any]) -> Iterator[Check]:
    if "input_lens" not in r:
        return
    good = [i for i, error in enumerate(r["errors"]) if not error]
    yield _close(
        "sum of input_lens = input tokens",
        sum(r["input_lens"][i] for i in good),
        r["total_input_tokens"],
    )
    yield _close(
        "sum of output_lens = output tokens",
        sum(r["output_lens"][i] for i in good),
        r["total_output_tokens"],
    )
    yield _close("requests without an error = completed", len(good), r["completed"])
    ttfts = [r["ttfts"][i] for i in good]
    if ttfts:
        mean = math.fsum(ttfts) / len(ttfts) * 1000.0
        yield _close("mean of ttfts = mean TTFT", mean, r["mean_ttft_ms"])


def _sums(r: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Check]:
    good = [record for record in records if record.success]
    yield _close("requests that succeeded = completed", len(good), r["completed"])
    yield _close("requests recorded = requests sent", len(records), r["requests_sent"])
    yield _close(
        "sum of prompt lengths = input tokens",
        sum(g.input_len for g in good),
        r["total_input_tokens"],
    )
    yield _close(
        "sum of answer lengths = output tokens",
        sum(g.output_len for g in good),
        r["total_output_tokens"],
    )
    yield _close(
        "sum of latencies / duration = concurrency",
        math.fsum(g.latency for g in good) / max(r["duration"], 1e-9),
        r["concurrency"],
    )
    longest = max((g.latency for g in good), default=0.0)
    yield _at_most("longest latency <= duration", longest, r["duration"])


def _each(records: Sequence[Record], exact_lengths: bool) -> Iterator[Check]:
    good = [record for record in records if record.success]
    late = sum(g.ttft > g.latency + SLACK for g in good)
    yield _close("requests whose first token came after their end", late, 0)
    over = sum(g.ttft + math.fsum(g.itl) > g.latency + SLACK * (len(g.itl) + 1) for g in good)
    yield _close("requests whose token gaps exceed their latency", over, 0)
    counted = [g for g in good if g.counted_by_server]
    gaps = sum(len(g.itl) >= max(g.output_len, 1) for g in counted)
    yield _close("requests with more token times than tokens", gaps, 0)
    if exact_lengths:
        requested = sum(g.requested for g in counted)
        yield _close(
            "generated tokens = asked tokens", sum(g.output_len for g in counted), requested
        )


def _check_prompts(records: Sequence[Record]) -> Iterator[Check]:
    reported = [r for r in records if r.success and r.prompt_tokens is not None]
    if reported:
        ours = sum(g.input_len for g in reported)
        theirs = sum(g.prompt_tokens or 0 for g in reported)
        yield _close("prompt tokens: client's count = server's count", ours, theirs)


def _close(name: str, left: float, right: float) -> Check:
    same = math.isclose(left, right, rel_tol=RELATIVE, abs_tol=1e-6)
    return Check(name, float(left), float(right), same)


def _at_most(name: str, left: float, right: float) -> Check:
    return Check(name, float(left), float(right), left <= right * (1 + RELATIVE) + SLACK)
