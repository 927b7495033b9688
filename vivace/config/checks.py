"""What must hold before anything is started. A check raises ConfigError or returns notices."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from vivace.config.all_to_all import added_in_order, dispatch
from vivace.config.chunks import chunk_and_page
from vivace.config.config import (
    ModelContext,
    Options,
    ResolveContext,
    all_options,
    option_value,
    options_by_name,
)
from vivace.config.draft_flags import idle_drafts, match_windows, speculation
from vivace.config.draft_models import draft_models, kernels_of_draft
from vivace.config.drafts import corpus, corpus_flags, relaxed_acceptance, settled_trees, trees
from vivace.config.environment import switched_on
from vivace.config.errors import ConfigError
from vivace.config.expert_parallel import expert_parallel
from vivace.config.exposure import exposure, hosts, origins
from vivace.config.kernels import INT8
from vivace.config.nodes import kernels_of_nodes, nodes
from vivace.config.option import Option, Support
from vivace.config.pipeline_parallel import pipeline_parallel
from vivace.config.pooled_models import pooled_models
from vivace.config.ranges import BUCKETS, ranges
from vivace.config.recurrent import recurrent_layers, whole_intervals
from vivace.config.rules import why_float_activations
from vivace.config.sglang import RETIRED_SPELLING
from vivace.config.sharded_state import loader_settings, saved_state
from vivace.config.tensor_parallel import crowded, one_device, replicas, tensor_parallel
from vivace.config.tool_servers import tool_servers
from vivace.config.values import size_text
from vivace.models.facts import checkpoint_quantization
from vivace.platforms.blocks import KEPT, PLAIN

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"

NEEDED: dict[str, str] = {
    "priority_scheduling_preemption_threshold": "enable_priority_scheduling",
    "schedule_low_priority_values_first": "enable_priority_scheduling",
    "eplb_rebalance_num_iterations": "enable_eplb",
    "eplb_rebalance_layers_per_chunk": "enable_eplb",
    "eplb_min_rebalancing_utilization_threshold": "enable_eplb",
    **{f"log_requests_{part}": "log_requests" for part in ("level", "format", "target")},
    "tool_server": "tool_call_parser",
    **dict.fromkeys(BUCKETS, "enable_metrics"),
}
"""option -> the switch without which it has no effect"""
DRAFT_LAYERS = "num_nextn_predict_layers"
_BLANK = r"(?:[ \t\n\r]|\\[tnr]|\\x(?:20|09|0[aAdD]))"
WHITESPACE = re.compile(rf"(?:{_BLANK}|\[{_BLANK}+\]|\((?:\?:)?|[)|?*+]|\{{\d*,?\d*\}})*")
"""expressions of what may stand between parts of JSON"""
NO_CHARACTERS = re.compile("[\ud800-\udfff]")
"""what Python makes of bytes of a command line that it cannot read"""
LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


def availability(options: Options, context: ResolveContext) -> list[str]:
    """Stops at an option that is not available here; tells which have no effect."""
    notices: list[str] = []
    for option in all_options():
        value = option_value(options, option)
        if value == option.default or value in option.trivial:
            continue
        state = option.state(context.platform.name, value)
        if state.kind is Support.NOT_AVAILABLE:
            shown = "" if option.shape == "bool" else f" {shown_value(value)}"
            raise ConfigError(
                f"{option.flag}{shown}{typed_as(options, option)} is {state.text()} "
                f"(device {context.platform.name}; see `vivace flags {option.flag[2:]}`)"
            )
        if state.kind is Support.NO_EFFECT:
            of_all = state is option.states[context.platform.name]
            shown = "" if of_all else f" {shown_value(value)}"
            notices.append(f"{option.flag}{shown} has {state.text()}")
    return notices


def shown_value(value: Any) -> str:
    """As it is typed: a list's items with blanks between them."""
    items = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    return " ".join(map(str, items))


def typed_as(options: Options, option: Option) -> str:
    """The retired spelling that stands on the command line instead, with the reason."""
    for rewrite in options.rewrites:
        if rewrite.rule == RETIRED_SPELLING and str(rewrite.after).split(" ")[0] in option.flags:
            return f" (given as --{rewrite.field.replace('_', '-')}, {rewrite.reason})"
    return ""


def of_the_model(options: Options, context: ResolveContext) -> list[str]:
    head = context.draft.head if context.draft is not None else None
    drafting = head is not None and head.behind
    notices = context.facts.notices
    return [one for one in notices if not (drafting and DRAFT_LAYERS in one)]


def names(options: Options) -> list[str]:
    name = options.model.served_model_name
    if name is not None and (":" in name or not name):
        raise ConfigError(
            f"--served-model-name {name!r}: empty names and ':' are refused "
            "(base:adapter will choose an adapter)"
        )
    for flag in ("log_level", "log_level_http"):
        level = getattr(options.logging, flag)
        if level is not None and level.lower() not in LEVELS:
            raise ConfigError(
                f"--{flag.replace('_', '-')} must be one of {', '.join(LEVELS)}, got {level}"
            )
    for flag in ("json_model_override_args", "preferred_sampling_params"):
        value: Any = getattr(options.model, flag)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"--{flag.replace('_', '-')}: must be a JSON object")
    return []


def characters(options: Options) -> list[str]:
    """Texts go to other processes and to clients, as UTF-8."""
    for option in all_options():
        text = shown_value(option_value(options, option))
        if NO_CHARACTERS.search(text):
            raise ConfigError(
                f"{option.flag} {text!r}: is no text in the encoding of this process "
                f"({sys.getfilesystemencoding()}): set PYTHONUTF8=1, or give it a name in UTF-8"
            )
    return []


def whitespace(options: Options) -> list[str]:
    asked, flag = options.optimization, "--constrained-json-whitespace-pattern"
    pattern = asked.constrained_json_whitespace_pattern
    if pattern is not None and not WHITESPACE.fullmatch(pattern):
        raise ConfigError(
            f"{flag} {pattern!r:.60}: may have in it only the white space that JSON has, blanks, "
            r"\t, \n and \r (\s has more), as in [ \t\n\r]*"
        )
    idle = pattern is not None and asked.constrained_json_disable_any_whitespace
    return [f"{flag} has no effect with --constrained-json-disable-any-whitespace"] if idle else []


def context_length(options: Options, context: ModelContext) -> list[str]:
    facts = context.facts
    asked, limit, stretch = options.model.context_length, facts.context, facts.stretch
    if asked is None and stretch is not None:
        return [
            f"{stretch.place} is {stretch.factor:g} ({stretch.kind}), and nothing says whether the "
            f"model's {limit} tokens are its context before that or after it: {limit} are served. "
            f"Where its card promises {stretch.longest}: --context-length {stretch.longest}"
        ]
    if asked is None or asked <= (limit if stretch is None else stretch.longest):
        return []
    if not switched_on(options.environment, LONGER):
        raise ConfigError(
            f"--context-length {asked} is above the model's {limit}; answers would degrade. "
            f"Set {LONGER}=1 to do it anyway"
        )
    return [f"--context-length {asked} is above the model's {limit}: answers may degrade"]


def priorities(options: Options) -> list[str]:
    schedule = options.schedule
    if schedule.enable_priority_scheduling and schedule.schedule_policy not in (
        "fcfs",
        "lof",
        "priority",
    ):
        raise ConfigError(
            f"--enable-priority-scheduling cannot be combined with --schedule-policy "
            f"{schedule.schedule_policy}; use fcfs, lof or priority"
        )
    return []


def formats(options: Options, context: ModelContext) -> list[str]:
    asked = options.quantization.quantization
    if asked == "gguf" and context.source.format != "gguf":
        raise ConfigError(
            f"--quantization gguf: {context.source.path} is a {context.source.format} model"
        )
    if context.source.format != "gguf":
        checkpoint_quantization(context.source, asked)
    if asked not in INT8:
        return []
    if options.model.model_impl == "transformers":
        raise ConfigError(
            f"--quantization {asked}: --model-impl transformers computes with floats; "
            "leave one of them out"
        )
    return [
        f"--quantization {asked}: weights that are not int8 in the checkpoint become int8 while "
        "they are loaded, with one scale for each output channel; embedding and head stay as stored"
    ]


def activations(options: Options, context: ResolveContext) -> list[str]:
    """After the rules."""
    if options.quantization.activation_dtype == "int8":
        reason = why_float_activations(options, context)
        if reason is not None:
            raise ConfigError(f"--activation-dtype int8: {reason}; leave it out")
    return []


def decoded_blocks(options: Options, context: ResolveContext) -> list[str]:
    """After the rules: blocks of a GGUF file that take more memory than in the file."""
    torch, dtype = options.runtime.disable_cpu_kernels, options.model.dtype
    if options.quantization.quantization in INT8:
        return []  # told by `formats`
    reads = "torch's operations read no blocks" if torch else f"kernels read {join_names(KEPT)}"
    return [
        f"{stored.kind.upper()} matrices, {size_text(stored.nbytes)} in the file, are decoded to "
        f"{dtype} and take {size_text(stored.numbers * ELEMENT_BYTES[dtype])}: {reads}"
        for stored in context.source.stored
        if stored.kind not in PLAIN and (torch or stored.kind not in KEPT)
    ]


def join_names(kinds: Iterable[str]) -> str:
    return ", ".join(kinds).upper()


def computable(options: Options, context: ResolveContext) -> list[str]:
    """After the rules: types that this device computes and stores in."""
    dtype, usable = options.model.dtype, context.platform.dtypes
    if dtype not in usable:
        raise ConfigError(
            f"--dtype {dtype} cannot be used on this {context.platform.name}; "
            f"use {' or '.join(usable)}"
        )
    kept = options.memory.kv_cache_dtype
    if options.runtime.disable_cpu_kernels and kept != dtype:
        raise ConfigError(
            f"--kv-cache-dtype {kept}: without the native kernels keys and values are kept in "
            f"--dtype, which is {dtype}; leave it out"
            + (f" or add --dtype {kept}" if kept in usable else "")
        )
    if options.runtime.disable_cpu_kernels and usable[0] == "float32" != dtype:
        return [
            f"--dtype {dtype} without the native kernels: this CPU has no instructions for it, so "
            "products take longer than those of --dtype float32, which takes twice the memory"
        ]
    return []


def idle(options: Options, context: ResolveContext) -> list[str]:
    """After the rules: what was asked for and does nothing beside the rest."""
    notices: list[str] = []
    known = options_by_name()
    for name, switch in NEEDED.items():
        option, needed = known[name], known[switch]
        if option_value(options, option) != option.default and not option_value(options, needed):
            notices.append(f"{option.flag} has no effect without {needed.flag}")
    hard, soft = options.runtime.watchdog_timeout, options.runtime.soft_watchdog_timeout
    if hard and soft and soft >= hard:
        notices.append(
            f"--soft-watchdog-timeout {soft:g} has no effect: the engine is replaced after "
            f"{hard:g} seconds (--watchdog-timeout); give less"
        )
    if options.schedule.abort_on_priority_when_disabled and (
        options.schedule.enable_priority_scheduling
    ):
        notices.append("--abort-on-priority-when-disabled has no effect: priorities are on")
    if options.model.is_embedding and options.optimization.enable_return_hidden_states:
        notices.append(
            "--enable-return-hidden-states has no effect with --is-embedding: vectors are made of "
            "them, and they come with generated text only"
        )
    return notices


def retractions(options: Options, context: ResolveContext) -> list[str]:
    if switched_on(options.environment, "SGLANG_TEST_RETRACT"):
        return ["SGLANG_TEST_RETRACT: sequences are retracted regularly, for tests"]
    return []


OPTION_CHECKS: list[Callable[[Options], list[str]]] = [
    ranges,
    names,
    characters,
    whitespace,
    origins,
    hosts,
    tool_servers,
    loader_settings,
]
"""of single values, whatever the model and the machine"""
PAIR_CHECKS: list[Callable[[Options], list[str]]] = [
    chunk_and_page,
    priorities,
    exposure,
    nodes,
    one_device,
    replicas,
    added_in_order,
    trees,
    match_windows,
    corpus_flags,
    speculation,
    relaxed_acceptance,
    idle_drafts,
]
"""of values beside each other"""
LAYOUT_CHECKS: list[Callable[[Options, ModelContext], list[str]]] = [
    expert_parallel,
    tensor_parallel,
    pipeline_parallel,
]
"""of how ranks share a model, by its shapes and by what shares a scale; after the rules, which
decide what reads the weights"""
MODEL_CHECKS: list[Callable[[Options, ModelContext], list[str]]] = [
    context_length,
    formats,
    saved_state,
    pooled_models,
    draft_models,
    recurrent_layers,
]
"""of values beside a model, whatever the machine"""
CHECKS: list[Callable[[Options, ResolveContext], list[str]]] = [
    of_the_model,
    availability,
    *MODEL_CHECKS,
    retractions,
]
"""before the rules"""
FINAL_CHECKS: list[Callable[[Options, ResolveContext], list[str]]] = [
    *LAYOUT_CHECKS,
    computable,
    activations,
    decoded_blocks,
    kernels_of_draft,
    settled_trees,
    whole_intervals,
    crowded,
    kernels_of_nodes,
    dispatch,
    idle,
    corpus,
]
