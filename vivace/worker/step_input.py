"""A step as the model sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivace.platforms.attention import AttentionBackend, HostStep, StepPages, StepStates
from vivace.platforms.platform import StepShape


@dataclass(kw_only=True, slots=True)
class StepInput:
    """What a model's forward sees of a step: T tokens in S spans. Views on fixed buffers."""

    input_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    query_starts: Tensor
    """[S + 1] int64: the tokens of span i are query_starts[i]..query_starts[i + 1]"""
    context_lens: Tensor
    """[S] int64: context of the row including this step"""
    groups: tuple[StepPages, ...]
    """where each token's KV goes, and that of its context is, in each cache group; in front of a
    row's window and behind its pages stands the empty page"""
    logits_indices: Tensor
    """[N] int64: the token rows whose logits are wanted (where spans reach what is known)"""
    attention: AttentionBackend
    host: HostStep
    states: StepStates | None = None
    """None: no layer has states"""
    shape: StepShape | None = None
    """of a step that a capture may serve; of several engines that take it together, with the rows
    of that which has most. None: rows have different numbers of tokens"""
