"""What one process of a role takes of its node, and what its container needs for the devices."""

from __future__ import annotations

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import GIB
from vivace.deploy.memory.plan import plan_role
from vivace.deploy.memory.stages import list_stages
from vivace.deploy.memory.weights import PRECISIONS, weight_precision, weights
from vivace.deploy.server_plan import ServerPlan, UnknownValue

CPUS = 4
"""of a rank"""
MEMORY = 8
"""GiB of a rank: Python, the engine and pinned buffers; not weights, of which a device's host maps
the file"""
SHARED = 1
"""GiB of /dev/shm for each rank, and once for the frontend: messages, and what ranks hand to one
another in host memory"""
MAX_GIB = 1 << 16
ASCEND_FILES = {
    "driver": "/usr/local/Ascend/driver",
    "dcmi": "/usr/local/dcmi",
    "npu-smi": "/usr/local/bin/npu-smi",
    "install-info": "/etc/ascend_install.info",
    "hccn": "/etc/hccn.conf",
}
"""name of the volume -> path: the driver and its tools, where they are installed, and the addresses
of the devices' network ports"""
ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
AMD_DEVICES = ("/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri")


class NodeShare(msgspec.Struct, frozen=True):
    """`devices`, CPUs, and GiB of memory and of /dev/shm, which is a part of it."""

    devices: int = 0
    cpus: int = 2
    memory: int = 4
    shared: int = 1


def node_shares(case: Case) -> dict[str, NodeShare]:
    """By role."""
    return {server.name: node_share(case, server) for server in case.all}


def node_share(case: Case, server: ServerPlan) -> NodeShare:
    if server.kind == "router":
        return NodeShare()
    try:
        ranks = min(MAX_GIB, max(1, -(-server.parallelism.devices // server.role.nodes)))
        cached = (host_cache(case, server) + weights_here(case, server)) * ranks
    except UnknownValue:
        ranks, cached = 1, 0
    shared = SHARED * (1 + ranks + transfers(case, server, ranks))
    return NodeShare(
        devices=ranks, cpus=CPUS * ranks, memory=MEMORY * ranks + shared + cached, shared=shared
    )


def transfers(case: Case, server: ServerPlan, ranks: int) -> int:
    """GiB in which the ranks of a GPU node exchange data where no link joins them: as much as the
    plan gives their communicators. HCCL's buffers lie in device memory."""
    if case.platform not in ("cuda", "hip") or ranks == 1:
        return 0
    plan = plan_role(case, server)
    parts = () if plan is None else plan.parts
    size = sum(part.size for part in parts if part.name == "communicators")
    return min(MAX_GIB, -(-size * ranks // GIB))


def on_cpus(case: Case) -> bool:
    """Whether ranks compute on CPUs: what Vivace does where nothing names a device."""
    return case.platform == "cpu" or (not case.platform and case.target.engine == "vivace")


def weights_here(case: Case, server: ServerPlan) -> int:
    """GiB that a rank on a CPU has in its node's memory; its KV has what the limit is above it."""
    if case.model is None or not on_cpus(case):
        return 0
    name, _ = weight_precision(server, case.deployment.model.quantization, case.model)
    sizes = [
        sum(weights(case.model, server, PRECISIONS[name], stage).values())
        for stage in list_stages(case.model, server)
    ]
    return min(MAX_GIB, -(-max(sizes) // GIB))


def host_cache(case: Case, server: ServerPlan) -> int:
    """GiB of host memory of a rank's hierarchical cache."""
    if not server.has("enable_hierarchical_cache"):
        return 0
    size, ratio = server.value("hicache_size"), server.value("hicache_ratio")
    if isinstance(size, int) and size > 0:
        return min(MAX_GIB, size)
    plan = plan_role(case, server)
    if plan is None or not isinstance(ratio, int | float):
        return 0
    return int(min(MAX_GIB, max(0, plan.pool) * max(0.0, float(ratio)) // GIB + 1))
