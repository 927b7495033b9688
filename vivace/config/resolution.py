"""Options -> Config: an ordered list of named, pure rules; what they decide is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from vivace.checkpoint.source import ModelSource
from vivace.config.all_to_all import dispatch
from vivace.config.checks import CHECKS, FINAL_CHECKS, OPTION_CHECKS, PAIR_CHECKS
from vivace.config.chunks import chunk, chunk_share
from vivace.config.config import (
    Config,
    DraftModel,
    ModelContext,
    Options,
    ResolveContext,
    Slices,
    option_value,
    options_by_name,
    with_values,
)
from vivace.config.drafts import draft_tree, draft_width
from vivace.config.errors import as_typed
from vivace.config.pipeline_parallel import plans_in_flight
from vivace.config.rules import RULES, Change, page_size, rows
from vivace.models.facts import ModelFacts
from vivace.models.pooling.facts import read_pooler
from vivace.platforms.platform import PlatformFacts, detect
from vivace.protocol.messages import Rewrite

UNSET = (None, "auto")
"""values that leave the choice to us"""

Rule = Callable[[Options, ResolveContext], Iterable[Change]]


def resolve(
    options: Options,
    source: ModelSource,
    facts: ModelFacts,
    platform: PlatformFacts,
    draft: DraftModel | None = None,
) -> Config:
    """Settle every setting. Raises ConfigError with what is wrong and what to do."""
    context = ResolveContext(source=source, facts=facts, platform=platform, draft=draft)
    notices = list[str]()
    for check in OPTION_CHECKS + PAIR_CHECKS:
        notices += check(options)
    for check in CHECKS:
        notices += check(options, context)
    rewrites = list(options.rewrites)
    for rule in RULES:
        options, changes = apply_rule(rule, options, context)
        rewrites += changes
    for check in FINAL_CHECKS:
        notices += check(options, context)
    embedding = options.model.is_embedding
    return Config(
        **{part.name: getattr(options, part.name) for part in dataclasses.fields(Slices)},
        source=source,
        facts=dataclasses.replace(facts, context=options.model.context_length),
        platform=platform,
        rewrites=tuple(rewrites),
        notices=(*options.notices, *(as_typed(notice, options.names) for notice in notices)),
        environment=options.environment,
        depth=plans_in_flight(options),
        draft_width=draft_width(options),
        draft_tree=draft_tree(options),
        pooling=read_pooler(source, facts) if embedding else None,
        draft=draft,
    )


def check_steps(options: Options, context: ModelContext) -> None:
    """What `resolve` says of the tokens of a step with low latency, by the defaults of this
    machine. Raises ConfigError."""
    if options.experts.deepep_mode != "low_latency":
        return
    settled = ResolveContext(source=context.source, facts=context.facts, platform=detect(None))
    for rule in (page_size, rows, chunk, chunk_share):
        options, _ = apply_rule(rule, options, settled)
    dispatch(options, settled)


def apply_rule(
    rule: Rule, options: Options, context: ResolveContext
) -> tuple[Options, list[Rewrite]]:
    """The options after a rule, and a record of every value it changed."""
    known = options_by_name()
    changes: list[Rewrite] = []
    for name, after, reason in list(rule(options, context)):
        before = option_value(options, known[name])
        if before == after:
            continue
        options = with_values(options, {name: after})
        changes.append(
            Rewrite(
                field=name,
                before=before,
                after=after,
                rule=getattr(rule, "__name__", "rule"),
                reason=reason,
                typed=name in options.given and before not in UNSET,
            )
        )
    return options, changes
