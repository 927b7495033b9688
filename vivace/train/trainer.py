"""The loop of training: batches, steps of AdamW, measuring, saving."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vivace.errors import CannotStart
from vivace.train.folder import HeadFolder, restore
from vivace.train.head import HeadPasses, Parameters
from vivace.train.objective import (
    DraftAcceptance,
    DraftVocabulary,
    TrainingBatch,
    compute_losses,
    make_batch,
    measure,
    weigh,
)
from vivace.train.progress import TrainingProgress
from vivace.train.state_files import StateFiles, StoredSequence
from vivace.train.target import TargetWeights

BETAS = (0.9, 0.95)
WARMUP = 0.03
"""of all training, until the learning rate is what was asked for"""
LEAST_RATE = 0.05
"""of the learning rate, at the end"""
LARGEST_GRADIENT = 1.0
AT_ONCE = 16
"""batches whose sequences are sorted by length together"""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    epochs: int
    learning_rate: float
    batch: int
    """sequences of a step"""
    steps: int
    seed: int
    seconds: float
    """after which it ends, whatever the epochs; infinite: never"""


class HeadTrainer:
    """Trains `parameters` in place. `describe`: the config.json of the head."""

    def __init__(
        self,
        settings: TrainingSettings,
        folder: HeadFolder,
        files: StateFiles,
        target: TargetWeights,
        vocabulary: DraftVocabulary,
        passes: HeadPasses,
        parameters: Parameters,
        config: dict[str, Any],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._files = files
        self._target = target
        self._vocabulary = vocabulary
        self._passes = passes
        self._parameters = parameters
        self._config = config
        self._output = target.rows(vocabulary.ids)
        self._learned = [one for one in files.sequences if not one.held_out]
        self._held_out = [one for one in files.sequences if one.held_out]
        self._optimizer = torch.optim.AdamW(
            list(parameters.values()), settings.learning_rate, BETAS, weight_decay=0.01, fused=True
        )
        self._each_epoch = math.ceil(len(self._learned) / settings.batch)
        self._done = 0
        """steps"""
        self._seconds = 0.0
        """of them all, those before the last interruption too"""
        self.measured: list[dict[str, Any]] = []
        """an entry for each epoch"""

    def resume(self) -> str:
        """Go on where it was interrupted; "" where nothing was. Says what is asked for otherwise
        from here. Raises CannotStart where texts are missing by now."""
        saved = self._folder.load()
        if saved is None:
            return ""
        tensors, progress = saved
        if not torch.equal(tensors["draft_ids"], self._vocabulary.ids):
            raise CannotStart(
                f"{self._folder.training}: the head was begun with other hidden states than are "
                "there; delete the folder, and train again"
            )
        restore(tensors, self._parameters, self._optimizer)
        self._done, self._seconds = progress["steps"], progress["seconds"]
        self.measured = progress["measured"]
        before: Mapping[str, Any] = progress.get("settings", {})
        changed = [
            f"--{name.replace('_', '-')} {value} (until now {before[name]})"
            for name, value in asdict(self._settings).items()
            if name != "seconds" and before.get(name, value) != value
        ]
        return ", ".join(["training goes on where it was interrupted", *changed])

    def run(self, progress: TrainingProgress) -> DraftAcceptance | None:
        """None: it was interrupted, and what is there is saved."""
        if not self._done:
            progress.say(f"untrained head: {describe(self.measure())}")
        started, before = time.monotonic(), self._seconds
        acceptance: DraftAcceptance | None = None
        while self.fraction < 1.0:
            loss = self._step()
            self._seconds = before + time.monotonic() - started
            epoch, place = divmod(self._done, self._each_epoch)
            text = f"epoch {epoch + (place > 0)}, loss {loss:.3f}"
            progress.update("Training", self.fraction, text)
            if progress.interrupted:
                self._save()
                return None
            if place == 0 or self.fraction >= 1.0:
                acceptance = self.measure()
                progress.say(f"epoch {self._done / self._each_epoch:.1f}: {describe(acceptance)}")
                self.measured.append({"steps": self._done, "loss": loss, **asdict(acceptance)})
                self._save()
        return acceptance or self.measure()

    @property
    def fraction(self) -> float:
        """How much of training is over."""
        settings = self._settings
        steps = self._done / (self._each_epoch * settings.epochs)
        return min(1.0, max(steps, self._seconds / settings.seconds))

    def measure(self) -> DraftAcceptance:
        """On what is held out."""
        batches = self._batches(self._held_out)
        return measure(self._passes, batches, self._output, self._vocabulary, self._settings.steps)

    def write(self, report: dict[str, Any]) -> None:
        self._folder.write_head(self._config, self._parameters, self._vocabulary, report)

    def _step(self) -> float:
        epoch, place = divmod(self._done, self._each_epoch)
        chosen = order_epoch(self._learned, self._settings.batch, self._settings.seed + epoch)
        (batch,) = self._batches(chosen[place])
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * rate_factor(self.fraction)
        losses = compute_losses(
            self._passes, batch, self._output, self._vocabulary, self._settings.steps
        )
        self._optimizer.zero_grad(set_to_none=True)
        weigh(losses).backward()
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), LARGEST_GRADIENT)
        self._optimizer.step()
        self._done += 1
        return float(losses[0].detach())

    def _batches(self, sequences: Sequence[StoredSequence]) -> Iterator[TrainingBatch]:
        size = self._settings.batch
        for start in range(0, len(sequences), size):
            chosen = sequences[start : start + size]
            yield make_batch(self._files, chosen, self._target, self._settings.steps)

    def _save(self) -> None:
        self._folder.save(
            self._parameters,
            self._optimizer,
            self._vocabulary,
            {
                "steps": self._done,
                "seconds": self._seconds,
                "measured": self.measured,
                "settings": asdict(self._settings),
            },
        )
        self.write({"steps": self._done, "measured": self.measured})


def order_epoch(
    sequences: Sequence[StoredSequence], batch: int, seed: int
) -> list[list[StoredSequence]]:
    """Batches of an epoch, of sequences about as long as each other."""
    chance, order = random.Random(seed), list(sequences)
    chance.shuffle(order)
    found = list[list[StoredSequence]]()
    for start in range(0, len(order), batch * AT_ONCE):
        some = sorted(order[start : start + batch * AT_ONCE], key=lambda one: one.count)
        found += [some[at : at + batch] for at in range(0, len(some), batch)]
    chance.shuffle(found)
    return found


def rate_factor(fraction: float) -> float:
    """A cosine behind a short rise."""
    if fraction < WARMUP:
        return max(0.1, fraction / WARMUP)
    wave = (1 + math.cos(math.pi * (fraction - WARMUP) / (1 - WARMUP))) / 2
    return LEAST_RATE + (1 - LEAST_RATE) * wave


def describe(found: DraftAcceptance) -> str:
    rates = ", ".join(f"{rate:.0%}" for rate in found.rates)
    return f"loss {found.loss:.3f}; drafts right: {rates}; {found.length:.2f} tokens a step"
