"""The sampling settings of requests that do not bring their own, and where they come from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vivace.checkpoint.fields import ConfigFields, FieldKind, Integer, Number
from vivace.config.serialize import in_unicode
from vivace.grammar.availability import why_no_grammars
from vivace.protocol.tasks import GENERATE, Embed, Task

if TYPE_CHECKING:
    from vivace.checkpoint.classifier import Classifier
    from vivace.checkpoint.pooling import PoolerConfig
    from vivace.checkpoint.source import ModelSource
    from vivace.config.config import Config
    from vivace.frontend.tokenizer import Tokenizer

GENERATION_FIELDS: dict[str, FieldKind[float]] = {
    "temperature": Number(0, 1e4),
    "top_p": Number(0, 1),
    "top_k": Integer(-1, 1 << 31),
    "min_p": Number(0, 1),
    "repetition_penalty": Number(1e-6, 2),
}
SMALLEST_TOP_P = 1e-6
ADVICE = "Correct the file, or leave its defaults out with --sampling-defaults openai"
SEED_STRIDE = 0x9E3779B97F4A7C15
"""How far apart the counters of two random seeds begin."""
PREFERRED = "--preferred-sampling-params"


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """`values`: SGLang's field names; what is absent has the built-in default.
    `origins`: for each of them, what said so."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def text(self) -> str:
        """For people: "temperature 0.2, top_p 0.9 (generation_config.json)"."""
        groups: dict[str, list[str]] = {}
        for name, value in self.values.items():
            groups.setdefault(self.origins[name], []).append(f"{name} {format_value(value)}")
        parts = [f"{', '.join(settings)} ({origin})" for origin, settings in groups.items()]
        return "; ".join(parts) or "temperature 1 (built in)"


def sampling_defaults(config: Config) -> SamplingDefaults:
    """--preferred-sampling-params over the model's own (--sampling-defaults model)."""
    found: dict[str, Any] = {}
    if config.model.sampling_defaults != "openai":
        found = model_defaults(config.source)
    origins = dict.fromkeys(found, config.source.sampling_origin)
    given = config.model.preferred_sampling_params
    preferred = json.loads(given) if isinstance(given, str) else given or {}
    return SamplingDefaults(
        values={**found, **preferred}, origins={**origins, **dict.fromkeys(preferred, PREFERRED)}
    )


def model_defaults(source: ModelSource) -> dict[str, Any]:
    """What the model's files recommend. Raises SourceError for a value that nothing can have."""
    given = ConfigFields(source.generation_config, source.generation_place, ADVICE)
    found = {n: given.need(n, kind) for n, kind in GENERATION_FIELDS.items() if given.has(n)}
    if found.get("top_k") == 0:
        found["top_k"] = -1
    if "top_p" in found:  # transformers keeps one token at least: 0 is greedy
        found["top_p"] = max(found["top_p"], SMALLEST_TOP_P)
    return found


def format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def seed_counter(random_seed: int = 0) -> Iterator[int]:
    """What seeds of requests that bring none are made of: it never repeats within a server's life,
    and two servers with one `--random-seed` draw the same."""
    return itertools.count(random_seed * SEED_STRIDE + 1)


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """`context`: longest prompt + output in tokens. `defaults`: SGLang-named sampling fields that
    requests may leave out. `max_live`: requests one frontend holds at once."""

    name: str
    path: str = ""
    tokenizer_path: str = ""
    context: int
    vocabulary: int
    model_type: str = ""
    architectures: tuple[str, ...] = ()
    weight_version: str = "default"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    allow_auto_truncate: bool = False
    hidden_size: int = 0
    task: Task = GENERATE
    """What a request asks for that says no more: tokens, or a vector on a server of embeddings."""
    dimensions: tuple[int, ...] | None = None
    """sizes to which vectors may be cut; None: any"""
    classifier: Classifier | None = None
    """What the numbers mean that come in the place of a vector; None: it is one."""
    step_token: int | None = None
    """What ends a step of reasoning, where the model judges each."""
    pair_step: int = 0
    """What is added to the ids of the second text of a pair."""
    returns_hidden_states: bool = False
    no_grammars: str = ""
    """Why there is no structured output; empty: there is."""
    seeds: Iterator[int] = field(default_factory=seed_counter)
    max_live: int = 65536
    max_samples: int = 128
    max_stop_strings: int = 32
    max_stop_characters: int = 512
    max_stop_ids: int = 256
    max_bias_ids: int = 1024
    max_top_logprobs: int = 128
    max_logprob_ids: int = 256


def served_task(pooling: PoolerConfig | None) -> Task:
    if pooling is None:
        return GENERATE
    return Embed(pooling=pooling.mode, normalize=pooling.normalize)


def served_model(config: Config, tokenizer: Tokenizer | None) -> ServedModel:
    """The edge's view of a resolved configuration."""
    facts, source, model = config.facts, config.source, config.model
    pooled = facts.pooled
    ends = [*facts.eos_ids, *(tokenizer.eos_ids if tokenizer is not None else ())]
    return ServedModel(
        name=in_unicode(model.served_model_name or model.model_path or str(source.path)),
        path=in_unicode(model.model_path or str(source.path)),
        tokenizer_path=in_unicode(str(model.tokenizer_path or source.tokenizer_path)),
        context=facts.context,
        vocabulary=facts.vocabulary,
        model_type=facts.model_type,
        architectures=(facts.architecture,),
        weight_version=in_unicode(model.weight_version or "default"),
        defaults=sampling_defaults(config).values,
        eos_ids=tuple(dict.fromkeys(ends)),
        hidden_size=facts.hidden_size,
        task=served_task(config.pooling),
        dimensions=None if config.pooling is None else config.pooling.dimensions,
        classifier=None if pooled is None else pooled.classifier,
        step_token=None if pooled is None else pooled.step_token,
        pair_step=pooled.encoder.pair_step if pooled and pooled.encoder else 0,
        returns_hidden_states=config.optimization.enable_return_hidden_states,
        no_grammars=why_no_grammars(config),
        allow_auto_truncate=bool(config.runtime.allow_auto_truncate),
        seeds=seed_counter(config.runtime.random_seed or 0),
    )
