"""What SGLang chooses by the device's memory where a flag is not given.

From server_args.py, for Ascend from 0.5.7 on from hardware_backend/npu/utils.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.server_plan import ServerPlan

USUAL_CHUNK = 8192
"""tokens, where the device is not known: of 60 to 160 GB, and of Ascend above 32"""
Row = tuple[str, str, tuple[tuple[float, *tuple[int, ...]], ...]]
CHUNKS: tuple[Row, ...] = (
    ("0.4.6", "", ((24.4, 2048), (math.inf, 8192))),
    ("0.4.6.post2", "", ((24.4, 2048), (96.1, 8192), (math.inf, 16384))),
    ("0.4.7.post1", "", ((35, 2048), (160, 8192), (math.inf, 16384))),
    ("0.5.3", "", ((35, 2048), (60, 4096), (160, 8192), (math.inf, 16384))),
    ("0.5.3.post3", "npu", ((20, 2048), (64.1, 32768), (160, 8192), (math.inf, 16384))),
    ("0.5.7", "npu", ((32.1, 4096), (160, 8192), (math.inf, 16384))),
    ("0.5.20", "", ((20, 2048), (60, 4096), (160, 8192), (math.inf, 16384))),
)
"""(first release, platform or all, (memory in GiB below, tokens) ...)"""
GRAPHS: tuple[Row, ...] = (
    ("0.4.6", "", ((24.4, 8, 80), (80.1, 160, 160), (math.inf, 256, 256))),
    ("0.4.6.post2", "", ((24.4, 8, 80), (96.1, 160, 160), (math.inf, 256, 256))),
    ("0.4.7", "", ((24.4, 8, 80), (96.1, 160, 160), (175.8, 256, 256), (math.inf, 512, 512))),
    ("0.4.7.post1", "", ((35, 8, 80), (90.1, 160, 160), (156.3, 256, 256), (math.inf, 512, 512))),
    ("0.5.3", "", ((20, 8, 8), (35, 16, 80), (60, 32, 160), (160, 256, 512), (math.inf, 512, 512))),
    ("0.5.3.post3", "npu", ((32.1, 16, 64), (60, 32, 160), (64.1, 64, 128), (math.inf, 256, 512))),
    ("0.5.4.post1", "",
     ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512), (math.inf, 512, 512))),
    ("0.5.7", "npu", ((32.1, 16, 64), (64.1, 64, 256), (math.inf, 256, 512))),
    ("0.5.20", "",
     ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512), (math.inf, 512, 512))),
)  # fmt: skip
"""(first release, platform or all, (memory in GiB below, size for tp below 4, for others) ...)"""


def chunk_size(server: ServerPlan, case: Case) -> int | None:
    """--chunked-prefill-size, or what it becomes; not positive: prompts are not cut."""
    if server.has("chunked_prefill_size"):
        return server.number("chunked_prefill_size")
    return default_chunk(case)


def default_chunk(case: Case) -> int:
    """Tokens, of the target release or else the newest that is known."""
    return USUAL_CHUNK if case.device is None else of_device(CHUNKS, case, case.device)[0]


def graph_default(server: ServerPlan, case: Case, device: Device) -> int:
    """--cuda-graph-max-bs, of the target release or else the newest that is known."""
    few, many = of_device(GRAPHS, case, device)
    return few if server.parallelism.tp < 4 else many


def of_device(table: Sequence[Row], case: Case, device: Device) -> tuple[int, ...]:
    """The values of a table for the memory of a device; a platform has rows of its own from one
    release on."""
    rows = [
        row for row in table if row[1] in ("", device.platform) and not case.target.before(row[0])
    ]
    own = [row for row in rows if row[1]]
    sizes = (own or rows)[-1][2]
    return next(tuple(values) for below, *values in sizes if device.memory_gib < below)
