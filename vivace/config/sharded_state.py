"""Weights that single ranks have saved, and the flags that must be the same when they are read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, cast

from vivace.checkpoint.saved_state import SavedState, changed_settings, read_saved_state
from vivace.checkpoint.source import ModelSource
from vivace.checkpoint.weight_files import PATTERN, SHARDED, files_of_rank, fill
from vivace.config.config import Config, ModelContext, Options, Slices
from vivace.config.errors import ConfigError
from vivace.config.expert_location import TRIVIAL, find_experts, read_locations
from vivace.config.parallelism import process_groups, requested_sizes
from vivace.config.pipeline_parallel import PARTITION
from vivace.models.facts import ModelFacts

FLAG = f"--load-format {SHARDED}"


def describe_saving(slices: Options | Config, facts: ModelFacts) -> dict[str, str]:
    """What decides which rank has what, by its name; what was not asked for is left out."""
    sizes, asked = requested_sizes(slices), slices.experts
    flags = {
        "--tensor-parallel-size": str(sizes.tp),
        "--pipeline-parallel-size": str(sizes.pp),
        PARTITION: slices.environment.get(PARTITION, "") if sizes.pp > 1 else "",
        "--expert-parallel-size": str(sizes.ep),
        "--moe-a2a-backend": "to whole experts" if sizes.all_to_all else "",
        "--enable-dp-attention --data-parallel-size": str(sizes.attention_dp),
        "--moe-dense-tp-size": str(sizes.dense_tp) if sizes.dense_tp != sizes.tp else "",
        "--ep-num-redundant-experts": str(asked.ep_num_redundant_experts),
        "--init-expert-location": describe_locations(slices, facts),
        "--quantization": slices.quantization.quantization or "",
        "--is-embedding": "yes" if slices.model.is_embedding else "",
    }
    shapes = {
        "architecture": facts.architecture,
        "layers": str(facts.layers),
        "hidden size": str(facts.hidden_size),
        "heads": f"{facts.heads} and {facts.kv_heads} of keys",
        "vocabulary": str(facts.vocabulary),
        "parameters": str(facts.parameters),
    }
    return {name: value for name, value in {**flags, **shapes}.items() if value}


def describe_locations(slices: Slices, facts: ModelFacts) -> str:
    experts = find_experts(facts)
    if experts is None or slices.experts.init_expert_location == TRIVIAL:
        return ""
    return f"of digest {zlib.crc32(repr(read_locations(slices, experts)).encode()):08x}"


def saved_state(options: Options, context: ModelContext) -> list[str]:
    """Files of single ranks are those of the ranks that will read them."""
    source = context.source
    if source.format != SHARDED:
        return []
    if options.experts.enable_eplb:
        raise ConfigError(
            f"{FLAG}: --enable-eplb moves experts to ranks that have no file of them; leave one out"
        )
    here = describe_saving(options, context.facts)
    ranks = ranks_of_node(options)
    check_ranks(source, options, ranks)
    made_of = read_saved_state(source.files[0]).checkpoint
    for rank in ranks:
        state = read_saved_state(files_of_rank(source.files, source.pattern, rank)[0])
        check_state(source, state, rank, here)
        if state.checkpoint != made_of:
            raise ConfigError(
                f"{source.path}: the files of ranks were made of several models; save one again"
            )
    return []


def loader_settings(options: Options) -> list[str]:
    """--model-loader-extra-config: how files of single ranks are named"""
    found: Any = options.model.model_loader_extra_config
    flag = "--model-loader-extra-config"
    if not found:
        return []
    if options.model.load_format != SHARDED:
        raise ConfigError(f"{flag}: only {FLAG} has settings; leave it out")
    if not isinstance(found, dict) or set(cast("dict[str, Any]", found)) != {"pattern"}:
        raise ConfigError(f'{flag}: the one setting is {{"pattern": NAME}}')
    if not isinstance(found["pattern"], str):
        raise ConfigError(f"{flag}: the pattern must be a text, as {PATTERN}")
    return []


def file_pattern(options: Options) -> str:
    """Of the names of files of single ranks; `loader_settings` has the words for a wrong one.
    Raises ConfigError where such files cannot be read: before transformers' code is asked what the
    model is, which takes seconds."""
    if options.model.load_format == SHARDED and options.model.model_impl == "transformers":
        raise ConfigError(f"{FLAG}: --model-impl transformers reads whole models; leave one out")
    found: Any = options.model.model_loader_extra_config
    named = cast("dict[str, Any]", found).get("pattern") if isinstance(found, dict) else None
    return named if isinstance(named, str) else PATTERN


def count_ranks(slices: Slices) -> int:
    """That have different weights"""
    sizes = requested_sizes(slices)
    return sizes.tp * sizes.pp


def ranks_of_node(options: Options) -> Sequence[int]:
    """That have different weights, of this machine: the files of others need not lie here"""
    sizes = requested_sizes(options)
    if sizes.nodes == 1:
        return range(count_ranks(options))
    return process_groups(sizes).nodes[options.parallel.node_rank]


def check_ranks(source: ModelSource, options: Options, ranks: Sequence[int]) -> None:
    for rank in ranks:
        if not files_of_rank(source.files, source.pattern, rank):
            start, saved = count_ranks(options), read_saved_state(source.files[0]).ranks
            remedy = "start as many" if start != saved else "this node needs it, copy it here"
            raise ConfigError(
                f"{source.path / fill(source.pattern, rank, 0)} is missing: {start} ranks start, "
                f"{saved} were saved; {remedy}"
            )


def check_state(source: ModelSource, state: SavedState, rank: int, here: dict[str, str]) -> None:
    if found := changed_settings(state.made_with, here):
        raise ConfigError(
            f"{source.path}: saved with {'; '.join(found)}: start with the same, or save the model "
            "again"
        )
    if state.rank != rank:
        raise ConfigError(
            f"{source.path / fill(source.pattern, rank, 0)}: the file of rank {state.rank}; give "
            "files their names back"
        )
