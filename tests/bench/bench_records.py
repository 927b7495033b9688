"""Three hand-made requests whose figures can be computed on paper."""

from __future__ import annotations

from vivace.bench.transport import Record


def three_requests() -> list[Record]:
    """Starts 0, 0.5, 1.0 after 100.0; the third fails. Duration is taken as 3.0 s."""
    return [
        Record(
            query=0,
            input_len=10,
            requested=5,
            start=100.0,
            success=True,
            ttft=0.2,
            latency=1.0,
            itl=[0.2, 0.2, 0.2, 0.2],
            output_len=5,
            counted_by_server=True,
            text="abcde",
            prompt_tokens=10,
            cached_tokens=4,
        ),
        Record(
            query=1,
            input_len=20,
            requested=3,
            start=100.5,
            success=True,
            ttft=0.4,
            latency=2.0,
            itl=[0.6, 1.0],
            output_len=3,
            counted_by_server=True,
            text="abc",
            prompt_tokens=20,
            cached_tokens=0,
        ),
        Record(
            query=2,
            input_len=30,
            requested=7,
            start=101.0,
            error="HTTP 500: broken",
            latency=0.1,
        ),
    ]
