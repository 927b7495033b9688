"""Bytes of weights on one device by part, from a model's shapes and its parallelism."""

from __future__ import annotations

import re

import msgspec

from vivace.deploy.memory.stages import StagePlan
from vivace.deploy.server_plan import ServerPlan
from vivace.models.architecture import Architecture
from vivace.models.families import FAMILIES, Family


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
    "mxfp4": Precision(0.53, 2),
    "nvfp4": Precision(0.57, 2),
    "fp8_fp4": Precision(0.53, 1),
}
NAMES = {
    **dict.fromkeys(("bfloat16", "fp16", "float16", "none", "unquant"), "bf16"),
    **dict.fromkeys(("int8", "w8a8_int8", "w8a8int8"), "w8a8"),
    **dict.fromkeys(("w8a8_fp8", "blockwise_int8", "modelopt_fp8"), "fp8"),
    **dict.fromkeys(("awq", "gptq", "int4", "awq_marlin", "gptq_marlin", "4bit"), "w4a16"),
    **dict.fromkeys(("w4afp8", "w4a8_int8"), "w4a8"),
    **dict.fromkeys(("fp4", "modelopt_fp4", "petit_nvfp4"), "nvfp4"),
}
MODELSLIM = "w8a8"
"""what --quantization modelslim most often means; the weights themselves say it"""
IN_PATH = re.compile(
    r"(?<![a-z0-9])(w(?:8a8|4a8|8a16|4a16)|fp8|bf16|fp16|awq|gptq|int4|int8|mxfp4|nvfp4|fp4)(?![a-z])",
    re.IGNORECASE,
)


def weight_precision(
    server: ServerPlan, stated: str | None, model: Architecture | None
) -> tuple[str, bool]:
    """(the precision of the weights, whether anything says so): as stated, from the path, from
    --quantization, from the model's config.json; else a guess."""
    quantization, path = server.value("quantization"), str(server.value("model_path") or "")
    in_path = IN_PATH.findall(path)
    for said in (stated, in_path[-1] if in_path else None, quantization):
        name = precision_named(str(said or ""))
        if name:
            return name, True
    if quantization is not None:
        return (MODELSLIM if quantization == "modelslim" else "bf16"), False
    native = precision_named(model.precision) if model is not None else ""
    return native or "bf16", bool(native)


def precision_named(text: str) -> str:
    """Empty for what says nothing about the size of weights."""
    name = text.lower().replace("-", "_")
    name = NAMES.get(name, NAMES.get(name.replace("_", ""), name))
    return name if name in PRECISIONS else ""


def weights(
    model: Architecture, server: ServerPlan, precision: Precision, stage: StagePlan
) -> dict[str, int]:
    """Part -> bytes on one device of a stage."""
    layout, hidden = server.parallelism, model.hidden
    by_head, everywhere = model.attention_parameters()
    attention = by_head / layout.attention_tp + everywhere
    if model.linear is not None:
        attention += model.linear_layers * model.linear.parameters(hidden) / layout.attention_tp
    dense = stage.dense * 3 * hidden * model.dense_width / dense_ranks(server)
    mixtures = stage.layers - stage.dense
    parts = {
        "attention": stage.part * attention * precision.linear,
        "dense MLP": dense * precision.linear,
        "shared experts": mixtures * shared_parameters(model, server) * precision.linear,
        "experts": mixtures * expert_parameters(model, server) * precision.experts,
        "routers": mixtures * router_parameters(model) * 2.0,
        **tables(model, server, precision, stage),
        "draft layers": draft_bytes(model, server, precision),
    }
    return {name: int(size) for name, size in parts.items() if size}


def dense_ranks(server: ServerPlan) -> int:
    return server.parallelism.dense_tp or server.parallelism.tp


def shared_parameters(model: Architecture, server: ServerPlan) -> float:
    """Every rank has the shared expert whole when experts are spread by all-to-all."""
    if model.experts is None:
        return 0.0
    whole = 3 * model.hidden * model.experts.shared_width
    layout = server.parallelism
    return whole if layout.all_to_all else whole / layout.tp


def expert_parameters(model: Architecture, server: ServerPlan) -> float:
    if model.experts is None:
        return 0.0
    count = model.experts.count + (server.number("ep_num_redundant_experts") or 0)
    return count * 3 * model.hidden * model.experts.width / server.parallelism.tp


def router_parameters(model: Architecture) -> int:
    return 0 if model.experts is None else model.hidden * model.experts.count


def tables(
    model: Architecture, server: ServerPlan, precision: Precision, stage: StagePlan
) -> dict[str, float]:
    """Embedding and head: dp attention keeps the embedding whole on every rank. A tied embedding is
    the last stage's head, too."""
    layout = server.parallelism
    size = model.vocabulary * model.hidden * precision.table
    embedding = size if layout.dp_attention else size / layout.tp
    embeds = stage.first or (stage.last and model.tied)
    heads = stage.last and not model.tied
    return {"embedding": embeds * embedding, "head": heads * size / layout.lm_head}


def drafting_layers(model: Architecture, server: ServerPlan) -> int:
    """Of those that the checkpoint brings; one, unless each step has a layer of its own."""
    if server.speculative_algorithm != "EAGLE":
        return 0
    beside = bool(FAMILIES.get(model.name, Family()).draft_stem)
    each = model.multi_layer or (server.has("enable_multi_layer_eagle") and not beside)
    return model.draft_layers if each else min(1, model.draft_layers)


def draft_bytes(model: Architecture, server: ServerPlan, precision: Precision) -> float:
    """Layers that the checkpoint brings (NEXTN); an external draft model is not known here."""
    if not (layers := drafting_layers(model, server)):
        return 0.0
    own = model.sliding if model.multi_layer and model.sliding else model.attention
    by_head, everywhere = own.parameters(model.hidden)
    attention = by_head / server.parallelism.attention_tp + everywhere
    joint = 2 * model.hidden * model.hidden
    linear = attention + joint
    if model.experts is None or model.multi_layer:
        linear += 3 * model.hidden * model.dense_width / dense_ranks(server)
        return layers * linear * precision.linear
    linear += shared_parameters(model, server)
    experts = expert_parameters(model, server)
    layer = linear * precision.linear + experts * precision.experts + router_parameters(model) * 2
    return layers * layer
