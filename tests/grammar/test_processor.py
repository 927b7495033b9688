"""Which rows need masks, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from grammar_kit import BACKEND, SIZE

from vivace.grammar.backend import PlacedMatcher
from vivace.grammar.compiler import GrammarCompiler
from vivace.grammar.processor import GrammarLogitsProcessor
from vivace.platforms.ops.sampling import TorchSampling
from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import LogprobOptions, SamplingParams
from vivace.protocol.step import Join
from vivace.sampling.processors import Entries, Histories


class CountingBackend:
    compile = BACKEND.compile

    def __init__(self) -> None:
        self.filled = 0

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        self.filled += len(matchers)
        BACKEND.fill(matchers, masks)


def draw(processor: GrammarLogitsProcessor, logits: torch.Tensor) -> int:
    """The best token of one row."""
    entries = Entries(torch.zeros(1).long(), torch.ones(1).long(), np.zeros(1, np.int64))
    processor.apply(logits, entries, np.zeros(1, np.int64))
    return int(logits[0].argmax())


@pytest.mark.parametrize(
    ("temperature", "options", "masks"),
    [(0.0, None, 2), (0.9, None, 6), (0.0, LogprobOptions(), 6)],
    ids=["greedy", "sampled", "scored"],
)
def test_a_greedy_row_is_masked_only_where_its_best_token_may_not_follow(
    temperature: float, options: LogprobOptions | None, masks: int
) -> None:
    """And once more behind that, ahead of time."""
    backend = CountingBackend()
    tokens = torch.zeros(1, 40, dtype=torch.int32)
    histories = Histories(tokens=tokens, prompt=torch.ones(1).long(), known=np.ones(1, np.int64))
    processor = GrammarLogitsProcessor(
        TorchSampling(reads=True), histories, GrammarCompiler(lambda: backend)
    )
    constraint = Constraint(kind=REGEX, text="[ab]{30}")
    sampling = SamplingParams(temperature=temperature, constraint=constraint)
    processor.joined(
        0,
        Join(
            row=0,
            key=0,
            tokens=[1],
            prompt=1,
            cached=0,
            pages=[],
            sampling=sampling,
            logprobs=options,
        ),
    )
    said = ""
    for best in "aaxaba":
        logits = torch.zeros(1, SIZE)
        logits[0, ord("b")] = 1.0
        logits[0, ord(best)] = 2.0
        token = draw(processor, logits)
        said += chr(token)
        if len(said) < 6:
            processor.landed({0: [token]}, at_once=False)
    assert said == "aababa"
    assert backend.filled == masks
