"""Every rule, in the order in which they are asked."""

from __future__ import annotations

from vivace.deploy.rules import (
    environment,
    experts,
    flags,
    goals,
    layout,
    load,
    memory,
    network,
    platform_flags,
    refused,
    rewrites,
    separation,
    speculative,
)
from vivace.deploy.rules.finding import Rule

RULES: tuple[Rule, ...] = (
    *flags.RULES,
    *platform_flags.RULES,
    *refused.RULES,
    *layout.RULES,
    *experts.RULES,
    *speculative.RULES,
    *separation.RULES,
    *load.RULES,
    *goals.RULES,
    *memory.RULES,
    *environment.RULES,
    *network.RULES,
    *rewrites.RULES,
)


def rule_named(name: str) -> Rule | None:
    return next((rule for rule in RULES if rule.name == name), None)
