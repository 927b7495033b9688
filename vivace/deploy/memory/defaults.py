"""What SGLang chooses by the device's memory where a flag is not given.

From server_args.py, for Ascend from 0.5.6.post1 on from hardware_backend/npu/utils.py."""

from __future__ import annotations

import math

from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.server_plan import ServerPlan

USUAL_CHUNK = 8192
"""tokens, where the device is not known: of 60 to 160 GB, and of Ascend above 32"""
CHUNKS: tuple[tuple[str, str, tuple[tuple[float, int], ...]], ...] = (
    ("0.4.6", "", ((24.4, 2048), (math.inf, 8192))),
    ("0.4.6.post2", "", ((24.4, 2048), (96.1, 8192), (math.inf, 16384))),
    ("0.4.7.post1", "", ((35, 2048), (160, 8192), (math.inf, 16384))),
    ("0.5.3", "", ((35, 2048), (60, 4096), (160, 8192), (math.inf, 16384))),
    ("0.5.3.post3", "npu", ((20, 2048), (64.1, 32768), (160, 8192), (math.inf, 16384))),
    ("0.5.6.post1", "npu", ((32.1, 4096), (160, 8192), (math.inf, 16384))),
    ("0.5.20", "", ((20, 2048), (60, 4096), (160, 8192), (math.inf, 16384))),
)
"""(first release, platform or all, (memory in GiB below, tokens) ...)"""


def chunk_size(server: ServerPlan, case: Case) -> int | None:
    """--chunked-prefill-size, or what it becomes; not positive: prompts are not cut."""
    if server.has("chunked_prefill_size"):
        return server.number("chunked_prefill_size")
    return default_chunk(case)


def default_chunk(case: Case) -> int:
    """Tokens, of the target release or else the newest that is known."""
    device, target = case.device, case.target
    if device is None:
        return USUAL_CHUNK
    rows = [row for row in CHUNKS if row[1] in ("", device.platform) and not target.before(row[0])]
    own = [row for row in rows if row[1]]
    return next(size for below, size in (own or rows)[-1][2] if device.memory_gib < below)


def graph_default(server: ServerPlan, device: Device) -> int:
    """--cuda-graph-max-bs"""
    small = server.parallelism.tp < 4
    if device.platform == "npu":
        if device.memory_gib <= 32:
            return 16 if small else 64
        return 64 if small else 256
    for below, few, many in ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512)):
        if device.memory_gib < below:
            return few if small else many
    return 512
