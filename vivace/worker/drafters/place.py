"""What a drafter finds in the worker that it proposes for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vivace.models.loading import ReportProgress
from vivace.platforms.cache import CacheMemory
from vivace.platforms.platform import Platform
from vivace.worker.captures import Captures
from vivace.worker.rows import RowStates


@dataclass(frozen=True)
class DrafterPlace:
    """`memory`: of the model's layers and the drafter's own; `dtype`: of activations;
    `step_tokens`: of the longest usual step."""

    rows: RowStates
    memory: CacheMemory
    platform: Platform
    captures: Captures
    dtype: torch.dtype
    step_tokens: int
    report: ReportProgress
