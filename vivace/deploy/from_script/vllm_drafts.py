"""What vLLM calls --speculative-config, in flags of SGLang."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

CONFIG = "speculative-config"
OLDER = {
    "speculative-model": "model",
    "num-speculative-tokens": "num_speculative_tokens",
    "speculative-model-quantization": "quantization",
    "ngram-prompt-lookup-max": "prompt_lookup_max",
    "ngram-prompt-lookup-min": "prompt_lookup_min",
}
"""flags of vLLM before 0.9 -> key of the configuration that took their place"""
NGRAM, MODEL = "NGRAM", "STANDALONE"
ALGORITHMS = {
    "ngram": NGRAM,
    "draft_model": MODEL,
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
}
"""method of vLLM -> --speculative-algorithm"""
SAME = {
    "model": "speculative-draft-model-path",
    "revision": "speculative-draft-model-revision",
    "quantization": "speculative-draft-model-quantization",
    "prompt_lookup_max": "speculative-ngram-max-match-window-size",
    "prompt_lookup_min": "speculative-ngram-min-match-window-size",
}
TOKENS = "num_speculative_tokens"
Add = Callable[[str, str, Sequence[str]], None]


def sets_drafts(name: str) -> bool:
    """Whether a flag of vLLM, without dashes, is about drafts."""
    return name == CONFIG or name.startswith(CONFIG + ".") or name in OLDER


def draft_settings(given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The configuration that all flags together are. Raises ValueError."""
    found: dict[str, Any] = {}
    for name, values in given.items():
        value = " ".join(values)
        if name == CONFIG:
            made = msgspec.json.decode(value)
            if not isinstance(made, dict):
                raise ValueError("no JSON object")
            found |= cast("dict[str, Any]", made)
        elif sets_drafts(name):
            found[OLDER.get(name, name.removeprefix(CONFIG + ".").replace("-", "_"))] = value
    return found


def draft_method(settings: Mapping[str, Any]) -> str:
    """As vLLM infers it from the draft's name, where it is not given."""
    model = str(settings.get("model", "")).lower()
    method = str(settings.get("method") or "")
    if method:
        return "mtp" if method.endswith("mtp") else method
    if model in ("ngram", "[ngram]"):
        return "ngram"
    return next((name for name in ("eagle3", "eagle") if name in model), "draft_model")


def draft_flags(settings: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """((flag, value), keys that no flag is like). Raises ValueError."""
    method = draft_method(settings)
    if method not in ALGORITHMS:
        raise ValueError(f"SGLang has no drafts of {method}")
    algorithm = ALGORITHMS[method]
    found = [("speculative-algorithm", algorithm)]
    left: list[str] = []
    for key, value in settings.items():
        if key == "method" or (key == "model" and algorithm == NGRAM):
            continue
        if key == TOKENS:
            found += width_flags(algorithm, str(value))
        elif key in SAME:
            found.append((SAME[key], str(value)))
        else:
            left.append(key)
    return found, left


def width_flags(algorithm: str, tokens: str) -> list[tuple[str, str]]:
    """vLLM counts drafts; SGLang counts what is verified, with the token before them."""
    if not (tokens.isdecimal() and len(tokens) < 6):
        raise ValueError(f"{TOKENS} is {tokens}")
    verified = ("speculative-num-draft-tokens", str(int(tokens) + 1))
    if algorithm == NGRAM:
        return [verified]
    return [("speculative-num-steps", tokens), ("speculative-eagle-topk", "1"), verified]
