"""What a head is to say, and how much of it a server would accept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vivace.train.head import HeadPasses
from vivace.train.state_files import StateFiles, StoredSequence
from vivace.train.target import TargetWeights

DECAY = 0.8
"""of the loss from one pass to the next"""


@dataclass(frozen=True, kw_only=True)
class DraftVocabulary:
    """`ids`[draft vocabulary] int64, ascending: the model's ids. `places`[vocabulary] int64: where
    an id is among them, -1: nowhere."""

    ids: Tensor
    places: Tensor


def choose_vocabulary(
    files: StateFiles, sequences: Sequence[StoredSequence], size: int, vocabulary: int
) -> DraftVocabulary:
    """The most frequent tokens of what is learned; of equally frequent ones the lower ids, which
    tokenizers give to more frequent tokens."""
    counts = torch.zeros(vocabulary, dtype=torch.int64)
    for one in sequences:
        counts += torch.bincount(files.tokens(one)[one.answer :], minlength=vocabulary)
    order = counts.sort(descending=True, stable=True).indices
    ids = order[: min(size, vocabulary)].sort().values
    places = torch.full((vocabulary,), -1)
    places[ids] = torch.arange(len(ids))
    return DraftVocabulary(ids=ids, places=places)


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """B sequences, filled up to L places. `features`[B, L, taps * hidden], `embedded`[B, L + steps,
    hidden]. Of K tokens that are learned: `sequence`, `place` [K] say behind which token each
    comes, `told`[K, hidden] what the model had there, `token`[K] which it is."""

    features: Tensor
    embedded: Tensor
    sequence: Tensor
    place: Tensor
    told: Tensor
    token: Tensor

    def inputs(self, step: int) -> Tensor:
        """[K]: places in B * L where pass `step` says what the K tokens are"""
        return self.sequence * self.features.shape[1] + self.place - 1 - step


def make_batch(
    files: StateFiles, sequences: Sequence[StoredSequence], target: TargetWeights, steps: int
) -> TrainingBatch:
    hidden = target.norm.shape[0]
    length = max(one.count for one in sequences)
    states = torch.zeros(len(sequences), length, files.width)
    tokens = torch.zeros(len(sequences), length + steps, dtype=torch.int64)
    learned = torch.zeros(len(sequences), length, dtype=torch.bool)
    for row, one in enumerate(sequences):
        states[row, : one.count] = files.states(one)
        tokens[row, : one.count] = files.tokens(one)
        learned[row, max(steps, one.answer - 1) : one.count - 1] = True
    sequence, place = learned.nonzero(as_tuple=True)
    return TrainingBatch(
        features=states[..., :-hidden],
        embedded=target.embed(tokens),
        sequence=sequence,
        place=place,
        told=states[..., -hidden:][sequence, place],
        token=tokens[sequence, place + 1],
    )


def compute_losses(
    passes: HeadPasses,
    batch: TrainingBatch,
    output: Tensor,
    vocabulary: DraftVocabulary,
    steps: int,
) -> list[Tensor]:
    """Of each pass the cross entropy with what the model makes of the draft vocabulary.
    `output`[draft vocabulary, hidden]: of its head."""
    known = (vocabulary.places[batch.token] >= 0).nonzero().squeeze(1)
    with torch.no_grad():
        wanted = functional.linear(batch.told[known], output).softmax(-1)
    losses = list[Tensor]()
    for step, hidden in enumerate(passes.unroll(batch.features, batch.embedded, steps)):
        chosen = hidden.flatten(0, 1).index_select(0, batch.inputs(step)[known])
        losses.append(functional.cross_entropy(passes.logits(chosen), wanted))
    return losses


def weigh(losses: Sequence[Tensor]) -> Tensor:
    return torch.stack([loss * DECAY**step for step, loss in enumerate(losses)]).sum()


@dataclass(frozen=True, kw_only=True)
class DraftAcceptance:
    """`rates`: of each draft how often it is right where those before it are; `length`: tokens of
    a step of the model, its own among them, when every step has as many drafts as there are rates.
    """

    rates: list[float]
    length: float
    loss: float


@torch.no_grad()
def measure(
    passes: HeadPasses,
    batches: Iterator[TrainingBatch],
    output: Tensor,
    vocabulary: DraftVocabulary,
    steps: int,
) -> DraftAcceptance:
    """On texts that the head has not seen. `loss`: of the first draft."""
    tried, right = [0] * steps, [0] * steps
    tokens = rounds = 0
    losses = list[float]()
    for batch in batches:
        hits = torch.zeros(steps, *batch.features.shape[:2], dtype=torch.bool)
        for step, hidden in enumerate(passes.unroll(batch.features, batch.embedded, steps)):
            chosen = hidden.flatten(0, 1).index_select(0, batch.inputs(step))
            said = vocabulary.ids[passes.logits(chosen).argmax(-1)]
            hits[step, batch.sequence, batch.place] = said == batch.token
        losses.append(float(compute_losses(passes, batch, output, vocabulary, 1)[0]))
        for row in range(hits.shape[1]):
            places = batch.place[batch.sequence == row].tolist()
            if places:
                found = hits[:, row].tolist()
                for place in places:
                    count_chain(found, place, places[-1], tried, right)
                tokens += len(places)
                rounds += count_rounds(found, places[0], places[-1])
    return DraftAcceptance(
        rates=[hit / max(1, count) for hit, count in zip(right, tried, strict=True)],
        length=tokens / max(1, rounds),
        loss=sum(losses) / max(1, len(losses)),
    )


def count_chain(
    hits: list[list[bool]], place: int, last: int, tried: list[int], right: list[int]
) -> int:
    """How many drafts stay of a chain that begins behind `place`."""
    for step, found in enumerate(hits):
        if place + step > last:
            return step
        tried[step] += 1
        if not found[place + step]:
            return step
        right[step] += 1
    return len(hits)


def count_rounds(hits: list[list[bool]], place: int, last: int) -> int:
    """Steps of the model from here to the end of the answer."""
    rounds, ignored = 0, [0] * len(hits)
    while place <= last:
        place += 1 + count_chain(hits, place, last, ignored, ignored)
        rounds += 1
    return rounds
