"""The verdict as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.memory.plan import MemoryPlan
from vivace.deploy.rules.judge import CheckResult
from vivace.deploy.rules.memory import plans


def as_json(case: Case, verdict: CheckResult, *, memory: bool = False) -> str:
    content: dict[str, Any] = {
        "file": case.file,
        "target": case.target.text,
        "errors": verdict.errors,
        "findings": msgspec.to_builtins(verdict.findings),
        "skipped": msgspec.to_builtins(verdict.skipped),
    }
    if memory:
        content["memory"] = [plan_data(plan) for _, plan in plans(case)]
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()


def plan_data(plan: MemoryPlan) -> dict[str, Any]:
    """Sizes in bytes of one device."""
    return {
        "role": plan.role,
        "device": plan.device.name,
        "mem_fraction_static": plan.fraction,
        "precision": plan.precision,
        "usable_bytes": plan.usable,
        "parts": msgspec.to_builtins(plan.parts),
        "kv_bytes_per_token": plan.token_bytes,
        "kv_tokens": plan.capacity,
        "kv_tokens_needed": plan.needed,
        "requests_held": plan.held,
        "binding": plan.binding,
    }
