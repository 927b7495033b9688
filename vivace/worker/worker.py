"""The worker: owns rows, positions and KV of one device, and runs plans on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.platforms.cache import CacheMemory
from vivace.platforms.host import ReadBack, upload
from vivace.platforms.platform import Platform
from vivace.platforms.rows import Spans, TokensByRow
from vivace.protocol.messages import Capacity
from vivace.protocol.step import ExecutorEvent, StepPlan, StepResult
from vivace.protocol.workers import (
    AddCorpus,
    MoveExperts,
    RemoveCorpus,
    WorkerCommand,
    WorkerState,
)
from vivace.sampling.sampler import BAD_NUMBERS
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.drafters.moves import count_places, move_tokens, straighten
from vivace.worker.experts import NO_EXPERTS, ExpertLayers
from vivace.worker.heads import Heads, StepOutput
from vivace.worker.model_runner import ModelRunner
from vivace.worker.rows import PlanError, RowStates
from vivace.worker.step_input import StepInput
from vivace.worker.step_inputs import StepInputs


class Worker:
    """Runs plans. `capacity` is what was sized on the device.

    A run that raises leaves positions and tokens as they were before its spans, and pages of states
    empty or as they were; rows that joined, left or received pages in that plan stay so.
    """

    def __init__(
        self,
        *,
        capacity: Capacity,
        rows: RowStates,
        kv: CacheMemory,
        attention: AttentionBackend,
        runner: ModelRunner,
        heads: Heads,
        inputs: StepInputs,
        platform: Platform,
        experts: ExpertLayers = NO_EXPERTS,
        drafter: Drafter = NO_DRAFTS,
    ) -> None:
        self.capacity = capacity
        self._drafter = drafter
        self._rows = rows
        self._kv = kv
        self._attention = attention
        self._runner = runner
        self._heads = heads
        self._inputs = inputs
        self._platform = platform
        self._experts = experts
        self._unread: list[WorkerStep] = []
        """steps in flight, the oldest first"""

    def run(self, plan: StepPlan) -> WorkerStep | EmptyStep:
        """Launch a step. What its rows drew they know on the device, and the next step may follow
        before anybody has asked for this one's result."""
        started = time.perf_counter()
        with torch.inference_mode():
            self._refuse_unavailable(plan)
            self._rows.apply(plan)
            self._heads.update(plan)
            self._drafter.update(plan)
            if plan.copies:
                self._kv.copy(plan.copies)
            if plan.vacant:
                self._kv.vacate(plan.vacant)
                self._platform.trim()
            if not plan.rows:
                return self._accompany(plan) if plan.together else EmptyStep(plan.number)
            if self._drafter.reads_tokens:
                self._read_unread()
            step, spans = self._inputs.gather(plan, self._attention)
            needs_tokens = self._heads.needs_tokens(spans)
            hidden, output = self._compute(step, spans, needs_tokens)
            pending = self._follow(plan, step, spans, output, started)
            if needs_tokens:
                pending.listeners.append(partial(self._heads.landed, at_once=pending.here))
            if self._drafter.reads_tokens:
                pending.listeners.append(self._teach)
            if pending.here:  # whatever fails while it is read fails before it is recorded
                pending.result()
            else:
                self._unread = [*(one for one in self._unread if not one.is_read), pending]
            self._rows.record(spans, output)
            if output.order is not None:
                move_tokens(self._kv, step, output.order)
            self._save_states(plan)
            hidden, *taps = straighten(output.order, [hidden, *self._runner.taps])
            self._drafter.follow(step, spans, hidden, taps)
            self._rows.extend(pending.forced)
            output.record()  # what only grows comes last: a step that fails is computed again
            if self._rows.states is not None:
                self._rows.states.enter()
        return pending

    def draft(self, rows: int) -> None:
        """Propose a token for each of the first rows that nobody verifies: to see what it takes."""
        with torch.inference_mode():
            chosen = np.arange(rows)
            self._drafter.propose(self._rows.columns, chosen, np.ones_like(chosen))

    def events(self) -> list[ExecutorEvent]:
        """Nothing happens beside the steps: no transport of KV is built in."""
        return []

    def control(self, command: WorkerCommand) -> WorkerState:
        refused = ""
        if isinstance(command, MoveExperts):
            with torch.inference_mode():
                refused = self._experts.move(command)
        if isinstance(command, AddCorpus):
            refused = self._drafter.add_corpus(command)
        if isinstance(command, RemoveCorpus):
            refused = self._drafter.remove_corpus(command)
        return WorkerState(
            refused=refused,
            pid=os.getpid(),
            threads=self._platform.threads,
            weight_bytes=self.capacity.weight_bytes,
            kv_bytes=self.capacity.kv_bytes,
            draft_bytes=self._drafter.text_bytes,
            corpora=self._drafter.corpora,
        )

    def wake_with(self, ring: Callable[[], None]) -> None:
        """There is nothing to ring for."""

    def close(self) -> None:
        """Nothing runs between steps, so there is nothing to stop."""

    def _refuse_unavailable(self, plan: StepPlan) -> None:
        """PlanError, before anything is changed."""
        states = self._rows.states.pages if self._rows.states else 0
        for save in plan.saves:
            if not 0 <= save.page < states:
                raise PlanError(f"step {plan.number}: {save} of {states} pages of states")
            if save.row not in plan.rows:
                raise PlanError(f"step {plan.number}: {save} is of a row that has no span")
        if plan.sends or plan.receives:
            raise PlanError(f"step {plan.number} transfers KV, but this worker has no transport")

    def _accompany(self, plan: StepPlan) -> EmptyStep:
        """Compute a token that is nobody's: other engines compute theirs, and the layers that all
        share wait for everybody."""
        self._experts.begin_step()
        self._runner.forward(self._inputs.accompany(plan.shares, self._attention))
        counts = self._platform.read_back(self._experts.count())
        return EmptyStep(plan.number, counts, captured=self._runner.captured)

    def _teach(self, drawn: TokensByRow) -> TokensByRow:
        for row, tokens in drawn.items():
            self._drafter.learn(row, tokens)
        return {}

    def _read_unread(self) -> None:
        for pending in self._unread:
            pending.result()

    def _compute(
        self, step: StepInput, spans: Spans, needs_tokens: bool
    ) -> tuple[Tensor, StepOutput]:
        """(hidden[T, n], what came of them)"""
        try:
            self._experts.begin_step()
            hidden = self._runner.forward(step)
            if needs_tokens:
                self._read_unread()
            return hidden, self._heads.read(step, spans, hidden)
        except BaseException:
            self._zero([pages.slot_mapping for pages in step.groups])
            raise

    def _follow(
        self, plan: StepPlan, step: StepInput, spans: Spans, output: StepOutput, started: float
    ) -> WorkerStep:
        wanted = [output.tokens, output.stays, output.bad_spans, output.bad_tokens]
        arrival = self._platform.read_back([*wanted, *self._experts.count()])
        slots = [pages.slot_mapping for pages in step.groups]
        if not arrival.here and spans.drafts is not None:
            # Before the next step: it computes these places again, and what it stores must stay.
            for group, found in enumerate(slots):
                self._kv.zero_where(found, output.bad_tokens, group)
            slots = []
        elif not arrival.here:  # the next step writes into the same buffers
            slots = [one.clone() for one in slots]

        def zero(tokens: np.ndarray) -> None:
            chosen = upload(np.flatnonzero(tokens), output.bad_tokens.device)
            self._zero([one.index_select(0, chosen) for one in slots])

        return WorkerStep(
            number=plan.number,
            undrafted=frozenset(plan.undrafted),
            spans=spans,
            output=output,
            arrival=arrival,
            rows=self._rows,
            drafter=self._drafter,
            why_stuck=self._heads.why_stuck,
            zero=zero,
            started=started,
            captured=self._runner.captured,
        )

    def _save_states(self, plan: StepPlan) -> None:
        states = self._rows.states
        if plan.saves and states is not None:
            sources = states.find([save.row for save in plan.saves])
            pages = np.array([save.page for save in plan.saves], np.int64)
            targets = upload(pages, sources.device)
            self._kv.copy_slots(plan.saves[0].group, sources, targets)

    def _zero(self, slots: list[Tensor]) -> None:
        """Forget what these slots of each group store."""
        for group, found in enumerate(slots):
            self._kv.zero_slots(found, group)


@dataclass(kw_only=True)
class WorkerStep:
    """`result` waits for the step, forgets what it stored of numbers that went wrong, and settles
    what the host knows of its rows."""

    number: int
    undrafted: frozenset[int]
    spans: Spans
    output: StepOutput
    arrival: ReadBack
    """of the output's tokens, stays, bad_spans and bad_tokens, and of counts of experts where there
    are any"""
    rows: RowStates
    drafter: Drafter
    why_stuck: Callable[[int], tuple[int, str] | None]
    zero: Callable[[np.ndarray], None]
    """forgets what tokens [T] bool of the step have stored"""
    started: float
    captured: bool
    listeners: list[Callable[[TokensByRow], TokensByRow]] = field(default_factory=list)
    """who want to hear what rows have drawn, and may say what must follow there"""
    forced: dict[int, list[int]] = field(default_factory=dict)
    """what rows know besides, once the step was read"""

    def __post_init__(self) -> None:
        self.here = self.arrival.here
        self._joined = self.rows.joined[self.spans.rows]
        self._result: StepResult | None = None

    @property
    def is_read(self) -> bool:
        return self._result is not None

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._read()
        return self._result

    def _read(self) -> StepResult:
        tokens, stays, bad, bad_tokens, *counts = self.arrival.wait()
        spans, advanced = self.spans, self.spans.counts
        if spans.drafts is not None or bad.any():
            if bad_tokens.any():
                self.zero(bad_tokens)
            advanced = self._settle(stays, bad)
        drawn = _split_tokens(spans, tokens, stays)
        if self.listeners:
            same = self.rows.joined[spans.rows] == self._joined
            rows = zip(spans.rows.tolist(), drawn, same, strict=True)
            landed = {row: some for row, some, stayed in rows if stayed and some}
            for listener in self.listeners:
                for row, tokens in listener(landed).items():
                    self.forced[row] = tokens
                    landed[row] += tokens
        return StepResult(
            number=self.number,
            advanced=advanced.tolist(),
            tokens=drawn,
            logprobs=self.output.read_logprobs(stays),
            prompt_logprobs=self.output.read_prompt_logprobs(bad),
            payloads=self.output.read_payloads(advanced),
            bad=dict.fromkeys(wrong := np.flatnonzero(bad).tolist(), BAD_NUMBERS),
            stuck={i: why for i in wrong if (why := self.why_stuck(int(spans.rows[i])))},
            expert_counts=b"".join(one.tobytes() for one in counts),
            ready_drafts=self._count_ready(rows := spans.rows.tolist()),
            accepted_drafts=count_places(spans, stays),
            drafts=self.drafter.drafts_to_send(rows),
            seconds=time.perf_counter() - self.started,
            captured=self.captured,
        )

    def _count_ready(self, rows: list[int]) -> list[int]:
        """Drafts that there are for each, where they are looked for."""
        if not self.undrafted:
            return self.drafter.ready(rows)
        asked = [row for row in rows if row not in self.undrafted]
        found = self.drafter.ready(asked)
        if asked and not found:
            return []
        counts = dict(zip(asked, found, strict=True))
        return [counts.get(row, 0) for row in rows]

    def _settle(self, stays: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """Where less came than could have: returns how far each span moved on, [S] int64."""
        spans = self.spans
        drawn = np.bincount(spans.final, stays, minlength=len(bad)).astype(np.int64)
        advanced = spans.counts
        if spans.drafts is not None:
            advanced = advanced - spans.drafts + np.maximum(drawn - 1, 0)
        advanced = np.where(bad, 0, advanced)
        self.rows.settle(spans, self._joined, advanced, drawn)
        return advanced


def _split_tokens(spans: Spans, tokens: np.ndarray, stays: np.ndarray) -> list[list[int]]:
    """The tokens that became known, of each span."""
    if spans.drafts is None and len(tokens) == len(spans.rows) and stays.all():
        return [[token] for token in tokens.tolist()]
    found: list[list[int]] = [[] for _ in range(len(spans.rows))]
    for span, token, stay in zip(
        spans.final.tolist(), tokens.tolist(), stays.tolist(), strict=True
    ):
        if stay:
            found[span].append(token)
    return found


@dataclass
class EmptyStep:
    """A plan without spans brings no more than counts of experts, of other engines' tokens."""

    number: int
    counts: ReadBack | None = None
    captured: bool = False

    def __post_init__(self) -> None:
        self.here = self.counts is None or self.counts.here

    def result(self) -> StepResult:
        counts = () if self.counts is None else self.counts.wait()
        return StepResult(
            number=self.number,
            advanced=[],
            tokens=[],
            expert_counts=b"".join(one.tobytes() for one in counts),
            captured=self.captured,
        )
