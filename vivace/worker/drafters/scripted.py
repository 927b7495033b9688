"""The references: a script proposes. They wait for the device, since scripts are the host's."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from vivace.platforms.host import download, upload
from vivace.platforms.rows import RowColumns
from vivace.protocol.workers import AddCorpus, RemoveCorpus
from vivace.worker.drafter import NoDrafter

MOST_TEXTS = 64
"""that a script remembers"""


class ScriptedDrafter(NoDrafter):
    """Chains: `script(known tokens, count)`."""

    def __init__(self, width: int, script: Callable[[list[int], int], Sequence[int]]) -> None:
        self.width = width
        self._script = script

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        lengths = download(columns.known)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            known = int(lengths[row])
            drafts = self._script(download(columns.tokens[row, :known]).tolist(), count)
            ids = upload(np.array(drafts, np.int32), columns.tokens.device)
            columns.tokens[row, known : known + count] = ids


class RememberedAnswers:
    """A script: what followed the same tokens before, each of them with a probability of
    `acceptance`, else another token. What a worker has not said yet is drafted wrong."""

    def __init__(self, acceptance: float, seed: int = 0) -> None:
        self._acceptance = acceptance
        self._chance = random.Random(seed)
        self._texts = deque[list[int]](maxlen=MOST_TEXTS)

    def __call__(self, known: list[int], count: int) -> list[int]:
        right = self._find(known)[len(known) : len(known) + count]
        said = [
            token if self._chance.random() < self._acceptance else wrong_token(token)
            for token in right
        ]
        return said + [0] * (count - len(right))

    def _find(self, known: list[int]) -> list[int]:
        """The text that begins so; it is remembered from now on."""
        for place, text in enumerate(self._texts):
            if text[: len(known)] == known:
                return text
            if known[: len(text)] == text:
                self._texts[place] = known
                return known
        self._texts.append(known)
        return known


def wrong_token(token: int) -> int:
    return 0 if token else 1


class SentDrafter(NoDrafter):
    """Of a stage before the last: what the last one proposes lies in the rows already
    (`HeadsElsewhere`)."""

    reports_ready = True  # that one may

    def add_corpus(self, corpus: AddCorpus) -> str:
        return ""  # that one has it

    def remove_corpus(self, corpus: RemoveCorpus) -> str:
        return ""

    def __init__(self, width: int) -> None:
        self.width = width
