"""Which layers of a model see a window of the last tokens only, from its configuration."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import abbreviate
from vivace.models.config_fields import ModelFields, is_no_window
from vivace.models.llama4_facts import rotated_layers
from vivace.models.twins import idle


def layer_windows(config: ModelFields, sliding: list[bool]) -> tuple[int | None, ...]:
    """Sliding window of each layer in tokens, None where attention is full."""
    layers = len(sliding)
    if config.get_known("use_sliding_window") is False:  # the value has no effect, whatever it is
        return (None,) * layers
    none = "sliding_window" in config.values and is_no_window(config.values["sliding_window"])
    window = None if none else config.get_known("sliding_window")  # read if no layer slides, too
    return tuple(window if slides else None for slides in sliding)


def sliding_layers(config: ModelFields, layers: int) -> list[bool]:
    refuse_other_layers(config)
    listed = config.get_known("layer_types")
    if listed is not None and len(listed) != layers:
        if len(listed) < layers or "num_hidden_layers" not in config.overridden:
            raise config.refusal(
                "layer_types", f"there must be {layers} entries, one for each layer"
            )
        listed = listed[:layers]  # fewer layers than there are: to try something out
    return list(listed) if listed is not None else unlisted_layers(config, layers)


def unlisted_layers(config: ModelFields, layers: int) -> list[bool]:
    """Which layers slide where `layer_types` does not say it."""
    if config.family.reads("use_sliding_window"):
        bound = config.get_known("max_window_layers") or 0
        wanted = config.get_known("use_sliding_window")
        if config.family.first_slide:
            return [wanted and index < bound and index % 2 == 0 for index in range(layers)]
        return [wanted and index >= bound for index in range(layers)]
    if config.family.reads("no_rope_layers"):
        return list(rotated_layers(config, layers))
    every = config.get_known("sliding_window_pattern") or config.family.full_every
    every = config.get_known("full_attention_interval") or every
    return [not every or (index + 1) % every != 0 for index in range(layers)]


def idle_patterns(config: ModelFields, windows: tuple[int | None, ...]) -> Iterator[str]:
    """A notice where `layer_types` counts, and an older key says something else."""
    otherwise = layer_windows(config, unlisted_layers(config, len(windows)))
    by_flag = config.family.reads("use_sliding_window")
    key = "max_window_layers" if by_flag else "sliding_window_pattern"
    if config.has("layer_types") and config.has(key) and otherwise != windows:
        yield idle(config, "layer_types", config, key)


def refuse_other_layers(config: ModelFields) -> None:
    """Layers that are no attention: the model is as it should be, and is not supported."""
    listed, known = config.whole.values.get("layer_types"), (config.family.local, "full_attention")
    for kind in listed if isinstance(listed, list) else ():
        if isinstance(kind, str) and kind not in known:
            raise SourceError(
                f"{config.place('layer_types')}: layers of kind {abbreviate(kind)} are not "
                f"supported; supported are {' and '.join(known)}"
            )
