"""Bytes of weights on one device by part, from a model's shapes and its parallelism."""

from __future__ import annotations

import re

import msgspec

from vivace.deploy.catalogue.architecture import Architecture
from vivace.deploy.server_plan import ALL_TO_ALL, Parallelism, ServerPlan


class Precision(msgspec.Struct, frozen=True):
    """Bytes of a weight: of routed experts, of other matrices, of embedding and head."""

    experts: float
    linear: float
    table: float = 2.0


PRECISIONS = {
    "bf16": Precision(2, 2),
    "w8a8": Precision(1, 1),
    "w8a16": Precision(1, 1),
    "fp8": Precision(1, 1),
    "w4a8": Precision(0.5, 1),
    "w4a16": Precision(0.5, 0.5),
}
NAMES = {"bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "int8": "w8a8", "w8a8_int8": "w8a8",
         "awq": "w4a16", "gptq": "w4a16", "int4": "w4a16", "none": "bf16"}  # fmt: skip
BY_FLAG = {"modelslim": "w8a8", "w8a8_int8": "w8a8", "fp8": "fp8", "awq": "w4a16", "gptq": "w4a16"}
IN_PATH = re.compile(r"w(?:8a8|4a8|8a16|4a16)|fp8", re.IGNORECASE)


def precision_name(server: ServerPlan, stated: str | None) -> str:
    """The precision of the weights: as stated, from the path, from --quantization, else 16 bits."""
    if stated:
        name = stated.lower().replace("-", "")
        name = NAMES.get(name, name)
        if name in PRECISIONS:
            return name
    asked = server.value("quantization")
    in_path = IN_PATH.search(str(server.value("model_path") or ""))
    if asked is not None and in_path:
        return in_path.group().lower()
    return BY_FLAG.get(str(asked), "bf16")


def weights(model: Architecture, server: ServerPlan, precision: Precision) -> dict[str, int]:
    """Part -> bytes on one device. The stages of a pipeline are taken as equal."""
    layout, hidden = server.parallelism, model.hidden
    by_head, everywhere = model.attention.parameters(hidden)
    attention = model.kv_layers * (by_head / layout.attention_tp + everywhere)
    if model.linear is not None:
        attention += model.linear_layers * model.linear.parameters(hidden) / layout.attention_tp
    dense = model.dense_layers * 3 * hidden * model.dense_width / dense_ranks(server)
    parts = {
        "attention": attention * precision.linear,
        "dense MLP": dense * precision.linear,
        "shared experts": model.expert_layers * shared_parameters(model, server) * precision.linear,
        "experts": model.expert_layers * expert_parameters(model, server) * precision.experts,
        "routers": model.expert_layers * router_parameters(model) * 2.0,
    }
    parts = {name: size / layout.pp for name, size in parts.items()}
    parts |= tables(model, server, precision)
    parts["draft layers"] = draft_bytes(model, server, precision)
    return {name: int(size) for name, size in parts.items() if size}


def dense_ranks(server: ServerPlan) -> int:
    return server.number("moe_dense_tp_size") or server.parallelism.tp


def shared_parameters(model: Architecture, server: ServerPlan) -> float:
    """Every rank has the shared expert whole when experts are spread by all-to-all."""
    if model.experts is None:
        return 0.0
    whole = 3 * model.hidden * model.experts.shared_width
    spread = server.value("moe_a2a_backend") in ALL_TO_ALL
    return whole if spread else whole / server.parallelism.tp


def expert_parameters(model: Architecture, server: ServerPlan) -> float:
    if model.experts is None:
        return 0.0
    count = model.experts.count + (server.number("ep_num_redundant_experts") or 0)
    return count * 3 * model.hidden * model.experts.width / server.parallelism.tp


def router_parameters(model: Architecture) -> int:
    return 0 if model.experts is None else model.hidden * model.experts.count


def tables(model: Architecture, server: ServerPlan, precision: Precision) -> dict[str, float]:
    """Embedding and head: dp attention keeps the embedding whole on every rank."""
    layout: Parallelism = server.parallelism
    size = model.vocabulary * model.hidden * precision.table
    embedding = size if layout.dp_attention else size / layout.tp
    ranks = layout.attention_tp if server.has("enable_dp_lm_head") else layout.tp
    return {"embedding": embedding, "head": 0.0 if model.tied else size / ranks}


def draft_bytes(model: Architecture, server: ServerPlan, precision: Precision) -> float:
    """Layers that the checkpoint brings (NEXTN); an external draft model is not known here."""
    if server.value("speculative_algorithm") not in ("NEXTN", "EAGLE") or not model.draft_layers:
        return 0.0
    by_head, everywhere = model.attention.parameters(model.hidden)
    attention = by_head / server.parallelism.attention_tp + everywhere
    joint = 2 * model.hidden * model.hidden
    linear = attention + joint + shared_parameters(model, server)
    experts = expert_parameters(model, server)
    layer = linear * precision.linear + experts * precision.experts + router_parameters(model) * 2
    return model.draft_layers * layer
