"""Which class a checkpoint names for its model, and the code of its own that it may bring."""

from __future__ import annotations

import re

from vivace.checkpoint.fields import CORRECT, ConfigFields, ListOf, Text
from vivace.checkpoint.source import ModelSource
from vivace.models.families import FAMILIES
from vivace.models.transformers_support import read_support

NO_LANGUAGE_MODEL = (
    "The config.json of a language model names its class there: give the folder of such a model, "
    "as transformers saves it, or the class with --json-model-override-args"
)

LANGUAGE_MODELS = {"Llama4ForConditionalGeneration": "Llama4ForCausalLM"}
"""classes for pictures too -> that of the language model in them, which is what is served"""


def read_class_name(source: ModelSource) -> str:
    """The first of `architectures`; of models of embeddings and of judges the `causal_name`."""
    given = source.config.get("model_type")
    known = read_support().causal_class(given)
    advice = NO_LANGUAGE_MODEL
    if source.advice == CORRECT:  # a draft's, which the flag does not reach
        advice = CORRECT
    elif known:
        override = f'--json-model-override-args \'{{"architectures": ["{known}"]}}\''
        advice = f"Models of the type {given!r} that generate text are of {known}: give {override}"
    fields = ConfigFields(source.config, source.place, advice)
    named = fields.need("architectures", ListOf(Text(), 64, 1))[0]
    return causal_name(LANGUAGE_MODELS.get(named, named))


def causal_name(named: str) -> str:
    """Of a body without its head, or with one that judges texts, the class that generates text."""
    whole = re.sub(
        "(ForSequenceClassification|For(Process)?RewardModel|Model)$", "ForCausalLM", named
    )
    return whole if whole in FAMILIES else named


def unread_parts(source: ModelSource) -> tuple[str, ...]:
    """Notices of what a checkpoint has for its model that is not used: code, a part that sees."""
    return (*unread_code(source), *unread_sight(source))


def unread_sight(source: ModelSource) -> tuple[str, ...]:
    named = source.config.get("architectures")
    seeing = [one for one in named if one in LANGUAGE_MODELS] if isinstance(named, list) else []
    return tuple(
        f"{source.place('architectures')} is {one}: its language model is served, as "
        f"{LANGUAGE_MODELS[one]}; pictures are not taken, and what reads them is not loaded"
        for one in seeing[:1]
    )


def unread_code(source: ModelSource) -> tuple[str, ...]:
    named = source.config.get("auto_map")
    code = [key for key in named if key.startswith("AutoModel")] if isinstance(named, dict) else ()
    if not code:
        return ()
    return (
        f"{source.place('auto_map')} names code of the checkpoint's own, which is never run: the "
        f"model is served as {read_class_name(source)}",
    )
