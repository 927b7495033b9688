"""Open the weights of a located model, whatever the format."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import torch

from vivace.checkpoint.dummy import DummyWeights
from vivace.checkpoint.fields import ADVICE
from vivace.checkpoint.gguf_file import GGUFError, GGUFFile
from vivace.checkpoint.gguf_weights import GGUFWeights, StoredLayout
from vivace.checkpoint.grouped_projections import GroupedProjections, spell_internlm2
from vivace.checkpoint.nomic_names import FUSED, spell_nomic
from vivace.checkpoint.safetensors_files import SafetensorsFiles, SpellNames
from vivace.checkpoint.sharded_weights import RankFiles
from vivace.checkpoint.source import ModelSource
from vivace.checkpoint.weight_files import SHARDED
from vivace.checkpoint.weights import (
    EMBEDDING,
    OUTPUT,
    CheckpointError,
    OpenWeights,
    ReportProgress,
    TrackedWeights,
)

TIED = "tie_word_embeddings"
INTERNLM2, NOMIC = "internlm2", "nomic_bert"
SPELLED: Mapping[str, SpellNames] = MappingProxyType(
    {INTERNLM2: spell_internlm2, NOMIC: spell_nomic}
)
"""model types whose files have names of their own"""

log = logging.getLogger(__name__)


def open_weights(
    source: ModelSource,
    facts: StoredLayout,
    *,
    seed: int,
    progress: ReportProgress = lambda stage, done: None,
    dtype: torch.dtype = torch.float32,
    rank: int = 0,
    spell: SpellNames | None = None,
) -> OpenWeights:
    """A fresh reader. `dtype` is what quantized tensors become; others stay what they are. `rank`:
    whose files, where each rank of an engine has its own. `spell`: names of safetensors files,
    where it is no whole model.

    Raises CheckpointError when the files are damaged.
    """
    if source.format == "dummy":
        return DummyWeights(seed, progress, tied=facts.tied)
    tied = facts.tied
    if source.format == SHARDED:
        own = RankFiles(source.files, rank, source.pattern)
        return TrackedWeights(own, tied=own.state.tied, progress=progress)
    if source.format == "safetensors":
        spell = SPELLED.get(facts.model_type, spell)
        reader = SafetensorsFiles(source.files, spell)
        tied = tied and not has_own_output(source, reader)
        if facts.model_type == INTERNLM2:
            reader = GroupedProjections(reader, facts.heads, facts.kv_heads)
    else:
        try:
            reader = GGUFWeights(GGUFFile(source.path), facts, dtype)
        except GGUFError as error:
            raise CheckpointError(str(error)) from None
    if facts.model_type == NOMIC:
        reader = GroupedProjections(reader, called=FUSED)
    return TrackedWeights(reader, tied=tied, progress=progress)


def has_own_output(source: ModelSource, reader: SafetensorsFiles) -> bool:
    """Whether a model that is said to share its embedding has an output layer of its own. That
    counts, as in transformers; what was tuned may say the other thing still."""
    if TIED in source.overridden or not {EMBEDDING, OUTPUT} <= set(reader.names()):
        return False
    if reader.same(EMBEDDING, OUTPUT):
        return False
    override = f"""For the embedding give --json-model-override-args '{{"{TIED}": true}}'"""
    log.warning(
        "%s: the model has its embedding as output layer, but %s is another matrix: it is served "
        "with that. %s",
        *(source.place(TIED), reader.label(OUTPUT), override if source.advice == ADVICE else ""),
    )
    return True
