"""Save what each rank takes of a checkpoint, for `--load-format sharded_state`.

No ranks are needed for it: which one takes what is a pure function of the flags, so here one after
the other is built as it would load, without the others, and what it takes is written.
"""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.file_state import model_digest
from vivace.checkpoint.saved_state import SavedState
from vivace.checkpoint.sharded_weights import PartWriter, SavingWeights
from vivace.checkpoint.weight_files import (
    PATTERN,
    beside_weights,
    check_pattern,
    numbered,
)
from vivace.checkpoint.weights import OpenWeights, ReportProgress
from vivace.config.sharded_state import count_ranks, describe_saving
from vivace.platforms.groups import AbsentRank
from vivace.platforms.platform import load_platform
from vivace.worker.build import load, platform_settings, wanted_context
from vivace.worker.layout import divide_layers

if TYPE_CHECKING:
    from vivace.config.config import Config

MAX_SIZE = 5 << 30
"""bytes of a file, as in SGLang and vLLM"""
STAGE = "Saving weights"


def save_sharded_state(
    config: Config,
    folder: Path,
    pattern: str | None = None,
    max_size: int | None = None,
    *,
    report: ReportProgress,
) -> None:
    """Write the files of every rank that `config` has, and what else lies beside the checkpoint's
    weights, into `folder`, which is made where it is missing. Raises CannotStart."""
    pattern, max_size = pattern or PATTERN, max_size or MAX_SIZE
    check_pattern(pattern)
    if config.source.format != "safetensors" or config.model.model_impl == "transformers":
        raise SourceError(
            f"{config.source.path}: only models of safetensors files are saved for single ranks, "
            "and without --model-impl transformers; of a GGUF file ranks read their own rows anyway"
        )
    prepare(folder, config.source.path, pattern)
    ranks = count_ranks(config)
    for rank in range(ranks):

        def tell(stage: str, fraction: float, rank: int = rank) -> None:
            report(STAGE, (rank + fraction) / ranks)

        save_rank(config, rank, folder, pattern, max_size, tell)
    report(STAGE, 1.0)


def save_rank(
    config: Config,
    rank: int,
    folder: Path,
    pattern: str,
    max_size: int,
    report: ReportProgress,
) -> None:
    ranks, writers = count_ranks(config), list[PartWriter]()
    made_with, checkpoint = describe_saving(config, config.facts), model_digest(config.source)

    def watch(weights: OpenWeights) -> OpenWeights:
        state = SavedState(
            rank=rank,
            ranks=ranks,
            tied=weights.tied,
            checkpoint=checkpoint,
            made_with=made_with,
        )
        writers.append(PartWriter(folder, pattern, max_size, state))
        return SavingWeights(weights, writers[0].add)

    platform = load_platform(config.platform, platform_settings(config, 1, owns_process=False))
    layout = divide_layers(config, AbsentRank(rank, ranks))
    load(config, platform, wanted_context(config), report, layout, watch=watch)
    writers[0].flush()


def prepare(folder: Path, model: Path, pattern: str) -> None:
    """A folder with the files of the model that are no weights. Raises SourceError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.samefile(model):
            raise SourceError(f"{folder}: the model itself lies there; give another folder")
        if any(numbered(folder.iterdir(), pattern)):
            raise SourceError(f"{folder}: files of ranks are there already; give a new folder")
        files = {folder / file.relative_to(model): file for file in beside_weights(model)}
        for target, file in files.items():
            if target.exists() and not filecmp.cmp(file, target, shallow=False):
                raise SourceError(f"{target}: another model's file; give a new folder")
        for target, file in files.items():
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror or error}") from None
