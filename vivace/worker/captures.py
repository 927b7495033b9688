"""Which decode steps are captured, and what runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vivace.config.all_to_all import VARIABLE, dispatched_rows
from vivace.models.loading import ReportProgress
from vivace.platforms.attention import AttentionBackend
from vivace.platforms.platform import GraphRecorder, StepShape
from vivace.protocol.messages import Rewrite
from vivace.worker.model_runner import (
    CapturedRunner,
    EagerRunner,
    ModelRunner,
    RunnableModel,
    capture_steps,
)
from vivace.worker.step_inputs import StepInputs

if TYPE_CHECKING:
    from vivace.config.config import Config

DEFAULT_CAPTURE = 256
"""rows: a replay runs only the rows that are there, so one capture serves every batch"""
REPLAYED_TOKENS = 12
"""tokens of a step with prompts that is quicker as a replay than op by op"""


@dataclass(frozen=True)
class Captures:
    """Which decode steps are captured; no sizes = none."""

    sizes: tuple[int, ...] = ()
    exact: bool = False
    """a capture serves its own size only"""
    rewrites: tuple[Rewrite, ...] = ()
    """sizes that were asked for and are not captured"""

    def replayed(self, recorder: GraphRecorder | None) -> tuple[int, int]:
        """Tokens of a step that is replayed as one of single tokens: with prompts, and of nothing
        but decode spans with drafts."""
        if recorder is None or self.exact:
            return 0, 0
        largest = max(self.sizes, default=0)
        return min(REPLAYED_TOKENS, largest), largest if recorder.most_tokens_per_row == 1 else 0


def choose_captures(config: Config, rows: int) -> Captures:
    """Sizes asked for, or one that serves every batch up to DEFAULT_CAPTURE rows. Rows are an
    engine's: of those that share layers each has as many (SGLang's sizes per DP rank).

    --cuda-graph-max-bs leaves larger ones out; more rows than a worker has are never needed, or
    where drafts are rows of such a step, more than all tokens that it may verify.
    """
    runtime, exact = config.runtime, bool(config.optimization.disable_cuda_graph_padding)
    if runtime.disable_cuda_graph:
        return Captures()
    requested, max_bs = runtime.cuda_graph_bs or (), runtime.cuda_graph_max_bs
    dispatched, rows = dispatched_rows(config), rows * (1 + config.draft_width)
    limit = min(max_bs or max(requested, default=DEFAULT_CAPTURE), rows, dispatched or rows)
    sizes = requested or (range(1, limit + 1) if exact else (limit,))
    kept = tuple(size for size in sizes if size <= limit) or (limit,)
    rewrites = []
    reason = f"at most {rows} requests run at once"
    if dispatched is not None and dispatched < rows:
        reason = f"an engine's ranks send {dispatched} tokens at once ({VARIABLE})"
        rows = dispatched
    if max_bs is not None and max_bs > rows:
        rewrites.append(rewrite("cuda_graph_max_bs", max_bs, rows, reason))
    if requested and set(kept) != set(requested):
        why = reason if limit == rows else f"--cuda-graph-max-bs is {max_bs}"
        rewrites.append(rewrite("cuda_graph_bs", requested, kept, why))
    return Captures(kept, exact, tuple(rewrites))


def rewrite(field: str, before: object, after: object, reason: str) -> Rewrite:
    return Rewrite(field=field, before=before, after=after, rule="build", reason=reason)


def build_runner(
    recorder: GraphRecorder | None,
    model: RunnableModel,
    attention: AttentionBackend,
    inputs: StepInputs,
    captures: Captures,
    report: ReportProgress,
) -> ModelRunner:
    """Eager, or captured where the platform can and steps were asked for."""
    eager = EagerRunner(model, attention)
    if recorder is None:
        return eager
    steps = capture_steps(
        eager,
        recorder,
        inputs,
        attention,
        [
            StepShape(size, each)
            for size in captures.sizes
            for each in {1, min(1 + inputs.drafts, recorder.most_tokens_per_row)}
        ],
        lambda fraction: report("Capturing decode steps", fraction),
    )
    nbytes = recorder.nbytes + sum(step.graph.nbytes for step in steps)
    return CapturedRunner(eager, attention, inputs, steps, nbytes=nbytes, exact=captures.exact)
