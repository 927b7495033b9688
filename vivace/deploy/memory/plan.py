"""The memory of one device of a role: its parts, the KV pool, and what the pool holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import msgspec

from vivace.deploy.case import Case, RequestLoad
from vivace.deploy.catalogue.hardware import GIB, Device
from vivace.deploy.memory import buffers
from vivace.deploy.memory.buffers import MIB
from vivace.deploy.memory.defaults import USUAL_CHUNK, chunk_size, graph_default
from vivace.deploy.memory.draft_weights import describe_draft, draft_weights, feature_bytes
from vivace.deploy.memory.stages import StagePlan, list_stages
from vivace.deploy.memory.weights import (
    PRECISIONS,
    Precision,
    dense_ranks,
    drafting_layers,
    weight_precision,
    weights,
)
from vivace.deploy.memory.windows import HCCL, buffer_variable, prefill_tokens
from vivace.deploy.server_plan import ServerPlan, UnknownValue
from vivace.models.architecture import Architecture
from vivace.models.attention_shapes import CompressedAttention

ELEMENT_BYTES = {"fp8_e5m2": 1, "fp8_e4m3": 1, "int8": 1, "float32": 4}
GRAPH_ROW = 2 * MIB
"""of one captured row (SGLang's reserve)"""
RUNTIME = 512 * MIB
"""kernels' own workspace (SGLang's reserve)"""
OTHER_COMMUNICATOR = 256 * MIB
"""of a group, where it is not HCCL's"""
Kind = Literal["context", "static", "outside"]


class MemoryPart(msgspec.Struct, frozen=True):
    """`kind`: taken by the runtime, inside --mem-fraction-static, or outside of it."""

    name: str
    size: int
    kind: Kind
    why: str = ""


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device; tokens and requests of one attention group.

    `pool` may be negative: the weights alone are more than the static part. `needed` is None
    where no load is stated.
    """

    role: str
    device: Device
    fraction: float
    chosen: bool
    """whether --mem-fraction-static was given; else it is SGLang's own"""
    precision: str
    parts: tuple[MemoryPart, ...]
    pool: int
    page: int
    """tokens"""
    token_bytes: int
    state_bytes: int
    """of a request with recurrent layers"""
    state_ratio: float
    """memory of all recurrent states for that of KV (--mamba-full-memory-ratio); 0: no layer keeps
    one"""
    groups: int
    """attention groups of an instance"""
    max_total_tokens: int | None
    running: int | None
    tokens_each: int | None
    shared: int
    """tokens of a prompt that all requests of a group have in common, kept once"""
    output: int
    """tokens of a request that come one by one"""
    external_draft: bool
    """nobody knows how large it is"""
    stage: str
    """of a pipeline: the one whose device has room for the fewest tokens, which decides for all"""

    @property
    def place(self) -> str:
        return f"{self.role}, {self.stage}" if self.stage else self.role

    @property
    def usable(self) -> int:
        return self.device.usable_bytes

    def total(self, kind: Kind) -> int:
        return sum(part.size for part in self.parts if part.kind == kind)

    @property
    def outside_limit(self) -> int:
        return self.usable - int(self.usable * self.fraction)

    @property
    def capacity(self) -> int:
        """Tokens the pool holds, or fewer where --max-total-tokens says so."""
        limit = self.max_total_tokens
        return self.room if limit is None else min(self.room, limit)

    @property
    def room(self) -> int:
        """Tokens there is memory for."""
        states = (self.running or 0) * self.state_bytes
        if self.state_ratio:
            states = self.state_room if self.running is None else min(states, self.state_room)
        free = self.pool - states
        pages = free // self.token_bytes // self.page if self.token_bytes else 0
        return max(0, pages * self.page)

    @property
    def state_room(self) -> int:
        """Bytes that recurrent states may take."""
        return int(max(0, self.pool) * self.state_ratio / (1 + self.state_ratio))

    @property
    def needed(self) -> int | None:
        """Tokens of all admitted requests at their longest."""
        if self.running is None or self.tokens_each is None:
            return None
        return self.shared + self.running * (self.tokens_each - self.shared)

    @property
    def usual(self) -> int | None:
        """Tokens of all admitted requests where each is halfway through its output, as in a steady
        load they are on average."""
        return None if self.needed is None else self.needed - (self.running or 0) * self.output // 2

    @property
    def held(self) -> int | None:
        """Concurrent requests of the stated lengths that one instance holds."""
        if not self.tokens_each:
            return None
        return max(0, self.capacity - self.shared) // (self.tokens_each - self.shared) * self.groups

    @property
    def binding(self) -> str:
        """The limit that is reached first."""
        if self.pool <= 0:
            return "weights"
        if self.total("outside") > self.outside_limit:
            return "outside of the static part"
        if self.needed is not None and self.needed > self.capacity:
            return "KV cache"
        if self.running is not None and self.needed is not None:
            return "max-running-requests"
        return "KV cache"


def plan_role(case: Case, server: ServerPlan) -> MemoryPlan | None:
    """None if model or device are unknown."""
    model, device = case.model, case.device
    if model is None or device is None:
        return None
    name, _ = weight_precision(server, case.deployment.model.quantization, model)
    context = int(device.context_gib * GIB)
    parts = [MemoryPart("runtime", context, "context", "driver, contexts")] if context else []
    given = server.ratio("mem_fraction_static")
    fraction = default_fraction(server, device, case) if given is None else given
    static = int(device.usable_bytes * fraction)
    stage = fullest_stage(model, server, PRECISIONS[name], static)
    held, draft = weights(model, server, PRECISIONS[name], stage), describe_draft(server)
    if draft is not None:
        held["draft model"] = draft_weights(draft, model, server)
    parts += [MemoryPart(each, size, "static", name) for each, size in held.items()]
    outside = outside_parts(model, server, case)
    pool = static - sum(held.values())
    return MemoryPlan(
        role=server.name,
        device=device,
        fraction=fraction,
        chosen=given is not None,
        precision=name,
        parts=(*parts, MemoryPart("KV cache", max(0, pool), "static"), *outside),
        pool=pool,
        page=server.page_tokens(case.platform),
        token_bytes=token_bytes(model, server, stage, draft),
        state_bytes=state_bytes(model, server, stage),
        state_ratio=(server.ratio("mamba_full_memory_ratio") or 0.9) if model.linear else 0.0,
        groups=server.parallelism.attention_dp,
        max_total_tokens=server.max_total_tokens,
        running=concurrent_requests(server, case.load),
        tokens_each=tokens_each(server, case.load),
        shared=shared_tokens(case, server),
        output=0 if server.kind == "prefill" else case.load.output or 0,
        external_draft=server.external_draft and draft is None,
        stage=stage.text,
    )


def fullest_stage(
    model: Architecture, server: ServerPlan, precision: Precision, static: int
) -> StagePlan:
    """Where the fewest tokens fit into what the weights leave of `static` bytes."""

    def room(stage: StagePlan) -> float:
        free = static - sum(weights(model, server, precision, stage).values())
        return free / max(1, token_bytes(model, server, stage)) if free > 0 else free

    return min(list_stages(model, server), key=room)


def concurrent_requests(server: ServerPlan, load: RequestLoad) -> int | None:
    """Concurrent requests of one attention group: the smaller of limit and load."""
    per_rank = None
    if load.concurrency is not None:
        per_rank = -(-load.concurrency // (server.role.instances * server.parallelism.dp))
    limits = [count for count in (server.running_per_rank, per_rank) if count is not None]
    return min(limits) if limits else None


def tokens_each(server: ServerPlan, load: RequestLoad) -> int | None:
    """Input and output, or only the input on a prefill server, which hands its KV over."""
    if load.input is None or load.output is None:
        return None
    return load.input + (0 if server.kind == "prefill" else load.output)


def shared_tokens(case: Case, server: ServerPlan) -> int:
    """Of every prompt, where the prefix cache keeps them once (workload.prefix_share)."""
    if not server.caches_prefixes:
        return 0
    page = server.page_tokens(case.platform)
    prompt = (case.load.input or 0) // page * page
    return min(int(prompt * case.workload.prefix_share), max(0, prompt - 1))


def token_bytes(
    model: Architecture, server: ServerPlan, stage: StagePlan, draft: Architecture | None = None
) -> int:
    """KV of one token on one device, that of drafts included. `draft`: a model of its own."""
    size = ELEMENT_BYTES.get(str(server.value("kv_cache_dtype")), 2)
    ranks = server.parallelism.attention_tp
    elements = model.kv_elements(ranks) * stage.layers / model.layers
    if draft is not None:
        drafted = draft.kv_elements(ranks)
    else:
        layers = drafting_layers(model, server) or server.speculative_algorithm == "EAGLE3"
        drafted = layers * model.attention.kv_elements(ranks)
    return int((elements + drafted) * size)


def state_bytes(model: Architecture, server: ServerPlan, stage: StagePlan) -> int:
    """Of a request, whatever its length: windows of compressed attention, recurrent states."""
    if isinstance(model.attention, CompressedAttention):
        return model.attention.window_bytes() * stage.layers
    if model.linear is None:
        return 0
    # Vivace: that of a row, another to write, one behind each draft, and one that is saved
    states = (
        server.draft_tokens + 1 + server.caches_prefixes if server.ours else server.draft_tokens
    )
    each = model.linear.state_bytes(server.parallelism.attention_tp, 4 if server.ours else 2)
    return int(each * states * model.linear_layers * stage.part)


def outside_parts(model: Architecture, server: ServerPlan, case: Case) -> tuple[MemoryPart, ...]:
    """Estimates of what --mem-fraction-static does not count."""
    tokens = prefill_tokens(server, case) if server.prefills else 0
    if not server.has("enable_nsa_prefill_context_parallel"):
        # Without context parallelism every rank of a group has all of its group's tokens.
        tokens *= server.parallelism.attention_tp
    rows = (server.running_per_rank or 1) * server.draft_tokens
    graphs, shared = captured_rows(server), communicator_bytes(model, server, case)
    buffer = "2 x HCCL_BUFFSIZE" if case.platform == "npu" else f"{OTHER_COMMUNICATOR >> 20} MiB"
    parts = [
        MemoryPart("activations", activation_bytes(model, server, max(tokens, rows)), "outside",
             f"{max(tokens, rows)} tokens at once"),
        MemoryPart("graphs", graphs * GRAPH_ROW * server.draft_tokens, "outside", f"{graphs} rows"),
        MemoryPart("sampler", rows * model.vocabulary * 8, "outside", f"{rows} rows of logits"),
        MemoryPart("draft features", rows * feature_bytes(model, server), "outside",
             f"{rows} rows of hidden states"),
        MemoryPart("communicators", shared, "outside", f"{buffer} for each group of ranks"),
        MemoryPart("workspace", RUNTIME, "outside"),
    ]  # fmt: skip
    return tuple(part for part in parts if part.size)


def captured_rows(server: ServerPlan) -> int:
    if server.has("disable_cuda_graph") or not server.decodes or server.expert_mode == "normal":
        return 0
    return max(server.graphs, default=server.running_per_rank or 0)


def activation_bytes(model: Architecture, server: ServerPlan, tokens: int) -> int:
    """In 16 bits: five hidden states (residual, input, two outputs, one of them communicated), and
    the widths of attention or of MLP or experts: the one is freed before the other is made."""
    by_head, everywhere = model.attention.parameters(model.hidden)
    width = 2 * by_head / model.hidden / server.parallelism.attention_tp + everywhere / model.hidden
    inner = 3 * model.dense_width / dense_ranks(server)
    if model.experts is not None:
        layout = server.parallelism
        share = layout.attention_dp * model.experts.chosen / layout.ep
        inner = max(inner, share * (model.hidden + 3 * model.experts.width * layout.ep / layout.tp))
    return int(tokens * 2 * (5 * model.hidden + max(width, inner)))


def communicator_bytes(model: Architecture, server: ServerPlan, case: Case) -> int:
    """Two buffers for each communicator of a device; the experts' one may have its own size."""
    layout = server.parallelism
    shared_dense = model.dense_layers > 0 and server.number("moe_dense_tp_size") != 1
    groups = sum([layout.attention_tp > 1, layout.dp_attention and shared_dense, layout.pp > 1])
    spread = bool(server.expert_mode)
    if case.platform != "npu":
        return (groups + spread) * OTHER_COMMUNICATOR
    each = server.int_variable(HCCL) or buffers.HCCL_DEFAULT
    experts = server.int_variable(buffer_variable(server)) or buffers.HCCL_DEFAULT
    return (groups * each + spread * experts) * 2 * MIB


def default_fraction(server: ServerPlan, device: Device, case: Case) -> float:
    """SGLang's own choice where --mem-fraction-static is not given (server_args.py, 0.5.10)."""
    memory = device.memory_gib * 1024
    chunk = chunk_size(server, case)
    chunk = chunk if chunk and chunk > 0 else server.number("max_prefill_tokens") or USUAL_CHUNK
    rows = max(server.graphs, default=graph_default(server, case, device))
    layout = server.parallelism
    reserved = 512 + 1.5 * max(chunk, 2048) + 2 * rows + 1024 * layout.tp * layout.pp / 8
    if layout.dp_attention:
        reserved += rows * layout.dp * (4.5 if rows > 300 else 3)
    if memory > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    algorithm = server.value("speculative_algorithm")
    if algorithm is not None:
        reserved += {"STANDALONE": 6 * 1024, "NGRAM": 0}.get(str(algorithm), 4 * 1024)
    return max(0.0, round((memory - reserved) / memory, 3))


def plans(case: Case) -> Iterator[tuple[ServerPlan, MemoryPlan]]:
    """Of the servers whose values are known."""
    for server in case.servers:
        with suppress(UnknownValue):
            plan = plan_role(case, server)
            if plan is not None:
                yield server, plan


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def fraction_for(plan: MemoryPlan) -> float:
    """The largest fraction that leaves room for the rest, in hundredths."""
    fraction = 1 - (plan.total("outside") / plan.usable + 0.005)
    return max(0.01, int(fraction * 100) / 100)
