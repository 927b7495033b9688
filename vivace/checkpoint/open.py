"""Open the weights of a located model, whatever the format."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from vivace.checkpoint.dummy import DummyWeights
from vivace.checkpoint.gguf_file import GGUFError, GGUFFile
from vivace.checkpoint.gguf_weights import GGUFWeights, StoredLayout
from vivace.checkpoint.safetensors_files import SafetensorsFiles
from vivace.checkpoint.source import ModelSource
from vivace.checkpoint.weights import (
    EMBEDDING,
    OUTPUT,
    CheckpointError,
    ReportProgress,
    TrackedWeights,
)
from vivace.platforms.ops.stored import Int8Rows, StoredBlocks

TIED = "tie_word_embeddings"

log = logging.getLogger(__name__)


class OpenWeights(Protocol):
    """`layers.module.Weights`, and the check at the end."""

    int8: bool
    """some matrices are stored as int8 with a scale for each row"""
    tied: bool
    """the output layer is the embedding"""

    def has(self, name: str) -> bool: ...

    def names(self) -> Iterable[str] | None: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor: ...

    def take_stored(
        self, name: str, shape: tuple[int, ...]
    ) -> Tensor | StoredBlocks | Int8Rows: ...

    def finish(self) -> None: ...


def open_weights(
    source: ModelSource,
    facts: StoredLayout,
    *,
    seed: int,
    progress: ReportProgress,
    dtype: torch.dtype = torch.float32,
) -> OpenWeights:
    """A fresh reader. `dtype` is what quantized tensors become; others stay what they are.

    Raises CheckpointError when the files are damaged.
    """
    if source.format == "dummy":
        return DummyWeights(seed, progress, tied=facts.tied)
    tied = facts.tied
    if source.format == "safetensors":
        reader = SafetensorsFiles(source.files)
        tied = tied and not has_own_output(source, reader)
    else:
        try:
            reader = GGUFWeights(GGUFFile(source.path), facts, dtype)
        except GGUFError as error:
            raise CheckpointError(str(error)) from None
    return TrackedWeights(reader, tied=tied, progress=progress)


def has_own_output(source: ModelSource, reader: SafetensorsFiles) -> bool:
    """Whether a model that is said to share its embedding has an output layer of its own. That
    counts, as in transformers; what was tuned may say the other thing still."""
    if TIED in source.overridden or not {EMBEDDING, OUTPUT} <= set(reader.names()):
        return False
    if reader.same(EMBEDDING, OUTPUT):
        return False
    log.warning(
        "%s: the model has its embedding as output layer, but %s is another matrix: it is served "
        """with that. For the embedding give --json-model-override-args '{"%s": true}'""",
        *(source.place(TIED), reader.label(OUTPUT), TIED),
    )
    return True
