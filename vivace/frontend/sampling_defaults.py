"""The sampling settings of requests that do not bring their own, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vivace.checkpoint.fields import Fields, Kind, Number, Whole

if TYPE_CHECKING:
    from vivace.checkpoint.source import ModelSource
    from vivace.config.config import Config

GENERATION_FIELDS: dict[str, Kind[float]] = {
    "temperature": Number(0, 1e4),
    "top_p": Number(0, 1),
    "top_k": Whole(-1, 1 << 31),
    "min_p": Number(0, 1),
    "repetition_penalty": Number(1e-6, 2),
}
SMALLEST_TOP_P = 1e-6
ADVICE = "Correct the file, or leave its defaults out with --sampling-defaults openai"
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
            groups.setdefault(self.origins[name], []).append(f"{name} {told(value)}")
        parts = [f"{', '.join(settings)} ({origin})" for origin, settings in groups.items()]
        return "; ".join(parts) or "temperature 1 (built in)"


def sampling_defaults(config: Config) -> SamplingDefaults:
    """--preferred-sampling-params over the model's own (--sampling-defaults model)."""
    found: dict[str, Any] = {}
    if config.model.sampling_defaults != "openai":
        found = of_model(config.source)
    origins = dict.fromkeys(found, config.source.sampling_origin)
    given = config.model.preferred_sampling_params
    preferred = json.loads(given) if isinstance(given, str) else given or {}
    return SamplingDefaults(
        values={**found, **preferred}, origins={**origins, **dict.fromkeys(preferred, PREFERRED)}
    )


def of_model(source: ModelSource) -> dict[str, Any]:
    """What the model's files recommend. Raises SourceError for a value that nothing can have."""
    given = Fields(source.generation_config, source.generation_place, ADVICE)
    found = {n: given.need(n, kind) for n, kind in GENERATION_FIELDS.items() if given.has(n)}
    if found.get("top_k") == 0:
        found["top_k"] = -1
    if "top_p" in found:  # transformers keeps one token at least: 0 is greedy
        found["top_p"] = max(found["top_p"], SMALLEST_TOP_P)
    return found


def told(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
