"""Runs an engine in this process: it answers prompts, and what it had in its layers is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from vivace.engine.executor import InProcessExecutor
from vivace.engine.loop import Loop
from vivace.engine.scheduler import Scheduler
from vivace.engine.settings import engine_settings
from vivace.errors import CannotStart
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import FINISH_ABORT, Delta, Deltas, Request, SamplingParams
from vivace.train.prompts import TrainingPrompt
from vivace.train.recorder import StateRecorder
from vivace.train.state_files import StateFiles

if TYPE_CHECKING:
    from vivace.checkpoint.weights import ReportProgress
    from vivace.config.config import Config

TEMPERATURES = (0.0, 0.7)
"""of answers, in turn; held-out ones are greedy"""


class Collection:
    """`rows` requests at a time; an answer ends where the sequence has `longest` tokens."""

    def __init__(
        self,
        config: Config,
        files: StateFiles,
        recorder: StateRecorder,
        report: ReportProgress,
        *,
        longest: int,
        rows: int,
        seed: int,
    ) -> None:
        """Loads the model. Raises CannotStart."""
        from vivace.worker.build import build_worker

        worker = build_worker(config, report, owns_process=True, drafting=recorder.choose)
        settings = engine_settings(config, worker.capacity)
        self._mailbox = LocalMailbox()
        self._loop = Loop(
            Scheduler(settings, worker.capacity, time.monotonic),
            InProcessExecutor(worker),
            self._mailbox,
            depth=settings.depth,
            clock=time.monotonic,
        )
        self._files = files
        self._recorder = recorder
        self._longest = longest
        self._rows = min(rows, worker.capacity.rows)
        self._seed = seed
        self._running: dict[int, tuple[TrainingPrompt, list[int]]] = {}

    def run(self, prompts: Sequence[TrainingPrompt], goes_on: Callable[[int], bool]) -> None:
        """Until all are done, the files are full, or `goes_on`, which is told how many tokens are
        known after each step, says no."""
        waiting = iter(self._missing(prompts))
        room = self._files.room
        try:
            while goes_on(self._known()):
                while len(self._running) < self._rows and room >= self._longest:
                    prompt = next(waiting, None)
                    if prompt is None:
                        break
                    self._mailbox.post(self._request(prompt))
                    self._running[prompt.number] = prompt, list(prompt.tokens)
                    room -= self._longest
                if not self._running:
                    break
                self._loop.step(0)
                for message in self._mailbox.collect():
                    if isinstance(message, Deltas):
                        room += sum(self._take(delta) for delta in message.deltas)
        finally:
            self._loop.close()

    def _known(self) -> int:
        """Tokens of sequences that have ended, and of those that run."""
        return self._files.count + sum(len(tokens) for _, tokens in self._running.values())

    def _missing(self, prompts: Iterable[TrainingPrompt]) -> list[TrainingPrompt]:
        there = {one.prompt for one in self._files.sequences}
        return [prompt for prompt in prompts if prompt.number not in there]

    def _request(self, prompt: TrainingPrompt) -> Request:
        each = TEMPERATURES[prompt.number % len(TEMPERATURES)]
        sampling = SamplingParams(
            max_new_tokens=self._longest - len(prompt.tokens) if prompt.answered else 1,
            temperature=0.0 if prompt.held_out else each,
            ignore_eos=not prompt.answered,
            seed=self._seed + prompt.number,
        )
        rid = str(prompt.number)
        return Request(key=prompt.number, rid=rid, tokens=prompt.tokens, sampling=sampling)

    def _take(self, delta: Delta) -> int:
        """Tokens of room that were set aside for it and are not needed."""
        prompt, tokens = self._running[delta.key]
        if prompt.answered:
            tokens += delta.tokens
        if not delta.finish:
            return 0
        del self._running[delta.key]
        if delta.finish.type == FINISH_ABORT:
            raise CannotStart(f"the engine refused prompt {prompt.number}: {delta.finish.message}")
        self._keep(prompt, tokens)
        return self._longest - len(tokens)

    def keep_unfinished(self) -> None:
        """Of answers under way what there is. Nothing runs afterwards."""
        for key, (prompt, tokens) in self._running.items():
            if len(tokens) > len(prompt.tokens) + 1 and self._recorder.has(key):
                self._keep(prompt, tokens)
        self._running.clear()

    def _keep(self, prompt: TrainingPrompt, tokens: Sequence[int]) -> None:
        self._files.add(
            tokens,
            self._recorder.take(prompt.number),
            prompt=prompt.number,
            answer=len(prompt.tokens) if prompt.answered else 0,
            held_out=prompt.held_out,
        )
