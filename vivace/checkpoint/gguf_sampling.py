"""What a GGUF file, or the card of its model, recommends for sampling."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.checkpoint.fields import abbreviate
from vivace.checkpoint.gguf_config import SAMPLING_KEYS
from vivace.checkpoint.gguf_file import GGUFFile

IDLE_SAMPLING_KEYS = {
    "general.sampling.xtc_probability": "XTC",
    "general.sampling.mirostat": "Mirostat",
    "general.sampling.penalty_last_n": "a window of the repetition penalty",
}


@dataclass(frozen=True)
class SamplingAdvice:
    origin: str
    sampling: dict[str, float]


CARDS = {
    "Smollm2 135M 8k Lc100K Mix1 Ep2": SamplingAdvice(
        "the card of SmolLM2-135M-Instruct", {"temperature": 0.2, "top_p": 0.9}
    )
}
"""`general.name` -> what the model's publisher generates with, of files that are known to leave it
out. The name goes with the model: into copies and other quantizations of the embedded file."""


def sampling_of_card(file: GGUFFile) -> SamplingAdvice | None:
    """What the model's card recommends, where the file, whatever its name, says nothing itself."""
    if any(name in file.metadata for name in SAMPLING_KEYS.values()):
        return None
    name = file.metadata.get("general.name")
    return CARDS.get(name) if isinstance(name, str) else None


def unused_sampling(file: GGUFFile) -> tuple[str, ...]:
    """A notice for each recommendation that is not followed; 0 turns all of them off."""
    return tuple(
        f"{file.path}: {key} is {abbreviate(file.metadata[key])}: it has no effect, {what} is not "
        "supported yet"
        for key, what in IDLE_SAMPLING_KEYS.items()
        if file.metadata.get(key)
    )
