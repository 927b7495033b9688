"""A step as the model, and as head and booking see it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vivace.platforms.attention import AttentionBackend, HostStep, StepPages


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
    counts: list[int]
    """query length of each span, on the host"""
    host: HostStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """The host side of a step's spans, as the head and the booking need it."""

    rows: np.ndarray
    """[S] int64"""
    counts: np.ndarray
    """[S] int64"""
    starts: np.ndarray
    """[S + 1] int64 token offsets"""
    before: np.ndarray
    """[S] int64: positions computed before this step"""
    final: np.ndarray
    """[N] int64: the span of each token whose logits are wanted: of the last known one and of the
    drafts behind it, where a span reaches it"""
    last: np.ndarray
    """[N] int64: those tokens"""
    positions: np.ndarray
    """[N] int64: of the tokens that are drawn from them"""
    drafts: np.ndarray | None = None
    """[S] int64: how many of a span's tokens are drafts; None: there are none"""
