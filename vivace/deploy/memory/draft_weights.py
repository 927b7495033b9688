"""What drafts take of a device's memory where a checkpoint of their own proposes them."""

from __future__ import annotations

from vivace.deploy.catalogue.models import (
    guess_model,
    known_architecture,
    names_exactly,
    read_description,
)
from vivace.deploy.files import is_folder
from vivace.deploy.memory.stages import list_stages
from vivace.deploy.memory.weights import PRECISIONS, precision_named, weights
from vivace.deploy.server_plan import ServerPlan, placeholder, unknown
from vivace.errors import CannotStart
from vivace.models.architecture import Architecture

HEAD_FEATURES = 3
"""hidden states of the model that a head of EAGLE3 is made of"""


def describe_draft(server: ServerPlan) -> Architecture | None:
    """Of a checkpoint that lies here, or whose path names a model of the catalogue; None where
    nobody knows."""
    path = server.value("speculative_draft_model_path")
    if not server.external_draft or not isinstance(path, str) or unknown(path) or placeholder(path):
        return None
    try:
        if is_folder(path):
            return read_description(path).architecture
    except (CannotStart, OSError, ValueError):
        return None
    known = guess_model(path) if names_exactly(path) else None
    return None if known is None else known_architecture(known, path)


def feature_bytes(model: Architecture, server: ServerPlan) -> int:
    """Hidden states of one token that a head drafts from, in 16 bits."""
    states = {"EAGLE3": HEAD_FEATURES, "EAGLE": 1}.get(server.speculative_algorithm, 0)
    return states * model.hidden * 2


def draft_weights(draft: Architecture, model: Architecture, server: ServerPlan) -> int:
    """Bytes on one device. A head uses the model's embedding."""
    named = server.value("speculative_draft_model_quantization") or draft.precision
    precision = PRECISIONS[precision_named(str(named)) or "bf16"]
    (stage, *_) = list_stages(draft, server)
    parts = weights(draft, server, precision, stage)
    parts.pop("draft layers", None)
    if server.speculative_algorithm == "EAGLE3":
        parts.pop("embedding", None)
        parts["fusion"] = int(HEAD_FEATURES * model.hidden * draft.hidden * precision.linear)
    return sum(parts.values())
