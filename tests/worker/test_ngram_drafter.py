"""The drafter of n-grams: what it tells the index, and what it writes behind the rows."""

from __future__ import annotations

import random
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from toy_model import Driver, toy_worker

from vivace.platforms.ngrams import SPACE_BYTES, NgramProposals, NgramSettings
from vivace.platforms.ops.ngrams import PythonNgramIndex
from vivace.protocol.messages import SamplingParams
from vivace.protocol.step import Join, StepPlan
from vivace.protocol.tasks import Embed
from vivace.protocol.workers import AddCorpus, RemoveCorpus
from vivace.worker.drafter import NO_DRAFTS
from vivace.worker.drafters import ngram
from vivace.worker.drafters.ngram import Breadth, NgramDrafter, name_space
from vivace.worker.drafters.scripted import SentDrafter

WIDTH = 4


def new_drafter(certain: int = 0) -> NgramDrafter:
    return NgramDrafter(PythonNgramIndex(NgramSettings(width=WIDTH)), WIDTH, certain=certain)


def joined(row: int, tokens: list[int], **changes: Any) -> StepPlan:
    given = {"key": row, "prompt": len(tokens), "cached": 0, "pages": [], **changes}
    join = Join(row=row, tokens=tokens, sampling=SamplingParams(), **given)
    return StepPlan(number=0, joins=[join])


def proposed(drafter: NgramDrafter, row: int, known: int, count: int) -> list[int]:
    columns: Any = SimpleNamespace(tokens=torch.full((3, 40), -1, dtype=torch.int32), parents=None)
    drafter.propose(columns, np.array([row]), np.array([count]))
    written = columns.tokens[row]
    assert (written[:known] == -1).all() and (written[known + count :] == -1).all()
    return written[known : known + count].tolist()


def test_it_writes_what_stood_behind_the_last_occurrence() -> None:
    drafter = new_drafter()
    drafter.update(joined(1, [5, 6, 7, 8, 9, 5]))
    drafter.learn(1, [6])
    assert drafter.ready([1]) == [4]
    assert proposed(drafter, 1, 7, 4) == [7, 8, 9, 5]
    assert proposed(drafter, 1, 7, 2) == [7, 8]
    drafter.learn(1, [7, 30])
    assert proposed(drafter, 1, 9, 2) == [0, 0], "of what it did not say to be ready"
    assert drafter.ready([1]) == [0]


def test_a_short_suffix_gets_more_ways_than_a_long_one() -> None:
    breadth = Breadth(least=1, most=5, shortest=1, longest=5)
    assert [breadth.find_most(length) for length in (1, 2, 3, 4, 5, 9)] == [5, 4, 3, 2, 1, 1]
    assert Breadth(2, 9, 3, 3).find_most(3) == 9


def test_trees_are_written_with_the_parents_of_their_drafts() -> None:
    index = PythonNgramIndex(NgramSettings(width=WIDTH, longest=2))
    drafter = NgramDrafter(index, WIDTH, breadth=Breadth(1, 3, 1, 2))
    columns: Any = SimpleNamespace(
        tokens=torch.full((3, 40), -1, dtype=torch.int32),
        parents=torch.full((3, WIDTH), 7, dtype=torch.int32),
    )
    place: Any = SimpleNamespace(rows=SimpleNamespace(columns=columns))
    drafter.attach(place)
    for row, last in ((0, 8), (2, 9)):
        drafter.update(joined(row, [50 + row, 6, last, last, last]))
        drafter.update(StepPlan(number=0, leaves=[row]))
    drafter.update(joined(1, [6]))
    assert drafter.ready([1]) == [4]
    drafter.propose(columns, np.array([1, 0]), np.array([3, 0]))
    assert columns.tokens[1, 1:4].tolist() == [9, 9, 8] and columns.tokens[1, 4] == -1
    assert columns.parents.tolist() == [[-1, 0, 1, 2], [-1, 0, -1, 2], [7] * WIDTH]


@pytest.mark.parametrize("operations", ["torch", "captured"])
def test_trees_change_no_token_and_bring_more_of_them_at_once(operations: str) -> None:
    """Others went on in several ways behind the same tokens. Where attention takes no trees drafts
    are chains."""
    steps = {}
    for breadth in (None, Breadth(1, 4, 1, 3)):
        index = PythonNgramIndex(NgramSettings(width=6, longest=3))
        drafter = NgramDrafter(index, 6, breadth=breadth)
        worker, _ = toy_worker(drafter=drafter, operations=operations)
        driver = Driver(worker)
        plain = toy_worker(operations=operations)[0]
        alone = Driver(plain)
        alone.join(0, [5, 9, 1])
        wanted = alone.generate(0, 40)
        for start in range(0, 30, 3):  # what comes, and behind it what does not
            for other in (wanted[start : start + 6], [*wanted[start : start + 2], 90, 91]):
                index.join(9, name_space(joined(0, [1]).joins[0]), other, 0)
                index.leave(9)
        driver.join(0, [5, 9, 1])
        driver.step({0: 3})
        count = 0
        while len(driver.sequences[0]["tokens"]) < 43:
            drafts = drafter.ready([0])[0]
            driver.step({0: 1 + drafts})
            count += 1
        assert driver.sequences[0]["tokens"][3:43] == wanted[:40]
        steps[breadth] = count
    chain, tree = steps.values()
    assert tree < chain if operations == "captured" else tree == chain


def test_the_last_tokens_decide_how_many_drafts_there_are() -> None:
    drafter = new_drafter(certain=3)
    text = [1, 2, 3, 40, 41, 42, 43, 44]
    for end, wanted in (([3], 0), ([2, 3], 2), ([1, 2, 3], 4), ([9], 0)):
        drafter.update(joined(0, [*text, 50, *end]))
        assert drafter.ready([0]) == [wanted]


def test_a_row_starts_anew_with_its_next_request() -> None:
    drafter = new_drafter()
    drafter.update(joined(0, [1, 2, 3, 1, 2], cache_key="1:a"))
    drafter.learn(0, [3])
    drafter.update(StepPlan(number=1, leaves=[0]))
    drafter.learn(0, [4])
    drafter.update(joined(0, [1, 2], cache_key="1:b"))
    assert drafter.ready([0, 1]) == [0, 0], "rows of another key say nothing"
    drafter.update(joined(1, [1, 2], cache_key="1:a"))
    assert drafter.ready([1]) == [4]
    assert proposed(drafter, 1, 2, 4) == [3, 1, 2, 3]


def test_texts_that_want_no_answer_are_nobodys_drafts() -> None:
    drafter = new_drafter()
    drafter.update(joined(0, [1, 2, 3, 1, 2], task=Embed(pooling="mean")))
    drafter.update(joined(1, [1, 2]))
    assert drafter.ready([0, 1]) == [0, 0]


def test_a_worker_draws_the_same_tokens_in_fewer_steps() -> None:
    answers = list[list[int]]()
    steps = list[int]()
    for drafter in (NO_DRAFTS, new_drafter()):
        worker, _ = toy_worker(drafter=drafter)
        driver = Driver(worker)
        driver.join(0, [5, 9, 1, 40, 7])
        result = driver.step({0: 5})
        sequence, count = driver.sequences[0], 1
        while len(sequence["tokens"]) < 50:
            result = driver.step({0: 1 + (result.ready_drafts or [0])[0]})
            count += 1
        answers.append(sequence["tokens"][:50])
        steps.append(count)
    assert answers[0] == answers[1]
    assert steps[1] < steps[0]


def test_a_corpus_has_known_ids_and_a_limit() -> None:
    index = PythonNgramIndex(NgramSettings(width=WIDTH))
    drafter = NgramDrafter(index, WIDTH, vocabulary=50, corpus_tokens=6)

    def add(*ids: int) -> str:
        return drafter.add_corpus(AddCorpus(f"text {ids}", np.array(ids, np.int32).tobytes()))

    assert "no tokens" in add() and "no tokens" in add(-1, -1)
    assert "ids" in add(3, 50) and "ids" in add(3, -2)
    assert "6" in add(*range(7))
    assert add(10, 11, 12, 13, -1) == ""
    assert "room for 1" in add(1, 2)
    assert "already" in add(10, 11, 12, 13, -1)
    assert drafter.corpora == {"text (10, 11, 12, 13, -1)": 4}
    drafter.update(joined(0, [10, 11]))
    assert drafter.ready([0]) == [2] and proposed(drafter, 0, 2, 2) == [12, 13]
    (name,) = drafter.corpora
    assert name in drafter.remove_corpus(RemoveCorpus(name + "2"))
    assert drafter.remove_corpus(RemoveCorpus(name)) == "" and not drafter.corpora
    assert drafter.ready([0]) == [0] and add(*range(6)) == "", "there is room again"
    assert "NGRAM" in NO_DRAFTS.add_corpus(AddCorpus("text", b""))
    assert "NGRAM" in NO_DRAFTS.remove_corpus(RemoveCorpus("text"))
    elsewhere = SentDrafter(3)
    assert not elsewhere.add_corpus(AddCorpus("text", b"")), "the last stage has it"
    assert not elsewhere.remove_corpus(RemoveCorpus("text"))


def test_there_are_at_most_so_many_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "MOST_CORPORA", 2)
    drafter = NgramDrafter(
        PythonNgramIndex(NgramSettings(width=WIDTH)), WIDTH, vocabulary=50, corpus_tokens=60
    )
    said = [drafter.add_corpus(AddCorpus(name, b"\1\0\0\0")) for name in "abc"]
    assert said[:2] == ["", ""] and "2" in said[2]
    assert not drafter.remove_corpus(RemoveCorpus("a"))
    assert not drafter.add_corpus(AddCorpus("c", b"\1\0\0\0"))
    assert list(drafter.corpora) == ["b", "c"]


def test_rows_that_get_no_drafts_are_not_looked_for() -> None:
    """A worker is told with the step before; what it has for others stays the same."""
    asked = list[list[int]]()

    class Watched(PythonNgramIndex):
        def propose(self, rows: list[int]) -> NgramProposals:
            asked.append(rows)
            return super().propose(rows)

    drafter = NgramDrafter(Watched(NgramSettings(width=WIDTH)), WIDTH)
    worker, _ = toy_worker(drafter=drafter)
    driver = Driver(worker)
    for row in (0, 1, 2):
        driver.join(row, [5, 9, 5, 9, 5, 9])
    for undrafted in ([], [0, 2], [0, 1, 2]):
        count = 1 if asked else 6
        result = driver.step(dict.fromkeys((0, 1, 2), count), undrafted=undrafted)
        looked = [row for row in (0, 1, 2) if row not in undrafted]
        assert asked[-1] == looked
        assert all(not n for row, n in enumerate(result.ready_drafts) if row in undrafted)


class PartIndex(PythonNgramIndex):
    corpus_part = 8

    def __init__(self, settings: NgramSettings) -> None:
        super().__init__(settings)
        self.changes: list[int] = []

    def add_corpus(self, tokens: np.ndarray) -> None:
        self.changes.append(len(tokens))
        super().add_corpus(tokens)

    def remove_corpus(self, place: int) -> None:
        self.changes.append(0)
        super().remove_corpus(place)


def matches(index: PythonNgramIndex, texts: list[list[int]]) -> list[int]:
    """Lengths of what is found for ends of four tokens; drafts are what stands behind those."""
    found = list[int]()
    documents = [each for text in texts for each in ",".join(map(str, text)).split("-1")]
    for end in permutations(range(5), 4):  # the row's own text has none twice
        index.join(1, bytes([*end] * (SPACE_BYTES // 4)), list(end), 0)
        proposals = index.propose([1])
        (drafts,), (length,) = proposals.drafts, proposals.lengths
        index.leave(1)
        said = ",".join(map(str, [*end[4 - length :], *drafts]))
        assert not length or any(said in document for document in documents)
        found.append(length)
    return found


@pytest.mark.parametrize("document", [15, 100])
def test_a_long_corpus_comes_and_goes_in_parts_beside_requests(document: int) -> None:
    """Nothing is lost where one part ends and the next one begins."""
    settings, chance = NgramSettings(width=WIDTH, longest=4, capacity=1), random.Random(3)
    overlap = settings.longest + settings.width
    texts = [[chance.randrange(5) for _ in range(100)] for _ in range(2)]
    for text in texts:
        text[document - 1 :: document] = [-1] * (100 // document)
    index = PartIndex(settings)
    drafter = NgramDrafter(index, WIDTH, vocabulary=50, corpus_tokens=200, overlap=overlap)
    drafter.update(joined(0, [40]))

    def pass_steps() -> list[int]:
        """Parts that were put in (their tokens) and taken out (0), one in each step"""
        index.changes.clear()
        for steps in range(1, 100):
            drafter.update(StepPlan(number=1))
            if len(index.changes) < steps:
                break
        return index.changes

    for name, text in zip("ab", texts, strict=True):
        assert drafter.add_corpus(AddCorpus(name, np.array(text, np.int32).tobytes())) == ""
    assert [*drafter.corpora.values()] == [100 - text.count(-1) for text in texts]
    put = pass_steps()
    assert 14 <= len(put) <= 40 and max(put) <= 8 + overlap
    assert matches(index, texts) == matches(whole(settings, texts), texts)
    assert drafter.remove_corpus(RemoveCorpus("a")) == "" and [*drafter.corpora] == ["b"]
    assert "room" in drafter.add_corpus(AddCorpus("c", np.zeros(10, np.int32).tobytes()))
    assert set(pass_steps()) == {0}
    assert matches(index, texts[1:]) == matches(whole(settings, texts[1:]), texts[1:])
    assert drafter.add_corpus(AddCorpus("c", np.zeros(10, np.int32).tobytes())) == ""


def whole(settings: NgramSettings, texts: list[list[int]]) -> PythonNgramIndex:
    index = PythonNgramIndex(settings)
    for text in texts:
        index.add_corpus(np.array(text, np.int32))
    return index
