"""Options (what was asked) and Config (what will run)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, cast

from vivace.checkpoint.pooling import PoolerConfig
from vivace.checkpoint.source import ModelSource
from vivace.config.hicache import HicacheOptions
from vivace.config.http import HttpOptions
from vivace.config.kernels import KernelOptions, OptimizationOptions, QuantizationOptions
from vivace.config.lora import LoraOptions
from vivace.config.mamba import MambaOptions
from vivace.config.memory import MemoryOptions, OffloadOptions
from vivace.config.model import ModelOptions, MultimodalOptions, WeightsOptions
from vivace.config.observability import DebugOptions, LoggingOptions
from vivace.config.option import Option, declared_options
from vivace.config.parallel import DisaggregationOptions, ExpertOptions, ParallelOptions
from vivace.config.runtime import RuntimeOptions
from vivace.config.schedule import ScheduleOptions
from vivace.config.speculative import SpeculativeOptions
from vivace.models.facts import ModelFacts
from vivace.platforms.platform import PlatformFacts
from vivace.protocol.messages import Rewrite


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Every subsystem's options."""

    model: ModelOptions = field(default_factory=ModelOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)
    quantization: QuantizationOptions = field(default_factory=QuantizationOptions)
    kernels: KernelOptions = field(default_factory=KernelOptions)
    optimization: OptimizationOptions = field(default_factory=OptimizationOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    experts: ExpertOptions = field(default_factory=ExpertOptions)
    disaggregation: DisaggregationOptions = field(default_factory=DisaggregationOptions)
    lora: LoraOptions = field(default_factory=LoraOptions)
    speculative: SpeculativeOptions = field(default_factory=SpeculativeOptions)
    mamba: MambaOptions = field(default_factory=MambaOptions)
    hicache: HicacheOptions = field(default_factory=HicacheOptions)
    offload: OffloadOptions = field(default_factory=OffloadOptions)
    weights: WeightsOptions = field(default_factory=WeightsOptions)
    multimodal: MultimodalOptions = field(default_factory=MultimodalOptions)
    debug: DebugOptions = field(default_factory=DebugOptions)


@dataclass(frozen=True, kw_only=True)
class Options(Slices):
    """What was asked. `rewrites`: what reading already replaced (retired spellings); `notices`:
    lines to show; `environment`: the honored variables; `given`: options somebody has set; `names`:
    every name of a flag -> the one that they gave."""

    rewrites: tuple[Rewrite, ...] = ()
    notices: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])
    given: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Config(Slices):
    """What will run: resolved options, and what they were resolved against."""

    source: ModelSource
    facts: ModelFacts
    platform: PlatformFacts
    rewrites: tuple[Rewrite, ...] = ()
    notices: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])
    depth: int = 2
    """plans in flight"""
    draft_width: int = 0
    """most drafts of a request in a step"""
    draft_tree: tuple[int, int] | None = None
    """as in EngineSettings"""
    pooling: PoolerConfig | None = None
    """with --is-embedding"""
    draft: DraftModel | None = None
    """what proposes drafts, where that is a model"""


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """What a head needs of the model."""

    taps: tuple[int, ...] = ()
    """layers whose inputs it is made of; none: what the last norm leaves"""
    vocabulary: int
    """of its own"""
    ids: tuple[int, ...] = ()
    """of the model's tokens, those that it may propose, in its order; none: all"""
    behind: int = 0
    """layers behind the last one of a whole model that it is, one for each draft if there are
    several; 0: it has a checkpoint of its own"""
    first_layer: int = 0
    """number of the first one of these in its files"""
    own_words: bool = False
    """it has a matrix that makes logits; else the model's makes them"""
    own_embedding: bool = False
    """it has an embedding of its own width; else the model's is its own"""
    norm_before_residual: bool = False
    """its layer adds to the normed state"""
    norm_output: bool = False
    """what its last norm leaves is the state for the next pass"""


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """A located model, or head of one, that proposes drafts."""

    source: ModelSource
    facts: ModelFacts
    head: HeadShape | None = None
    """None: a whole model"""


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """What checks may look at besides the options, whatever the machine."""

    source: ModelSource
    facts: ModelFacts
    draft: DraftModel | None = None


@dataclass(frozen=True, kw_only=True)
class ResolveContext(ModelContext):
    """What checks and rules may look at besides the options."""

    platform: PlatformFacts


@cache
def all_options() -> tuple[Option, ...]:
    """Every option, slice by slice, in declared order."""
    slices, found = Slices(), list[Option]()
    for part in dataclasses.fields(slices):
        found += declared_options(type(cast("object", getattr(slices, part.name))), part.name)
    return tuple(found)


@cache
def options_by_name() -> Mapping[str, Option]:
    """Every option by the name of its field."""
    return MappingProxyType({option.name: option for option in all_options()})


def option_value(slices: Slices, option: Option) -> Any:
    return getattr(getattr(slices, option.slice_name), option.name)


def with_values(options: Options, values: dict[str, Any]) -> Options:
    """Options with some set, by option name."""
    changed: dict[str, dict[str, Any]] = {}
    known = options_by_name()
    for name, value in values.items():
        changed.setdefault(known[name].slice_name, {})[name] = value
    parts = {
        name: dataclasses.replace(getattr(options, name), **fields)
        for name, fields in changed.items()
    }
    return dataclasses.replace(options, **parts)
