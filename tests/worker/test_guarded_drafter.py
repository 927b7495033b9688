"""A drafter that fails costs drafts, and nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest
from toy_model import Driver, toy_worker

from vivace.worker.drafter import NoDrafter
from vivace.worker.drafters.guarded import GuardedDrafter

METHODS = ("update", "propose", "follow", "learn", "ready", "drafts_to_send")


class FailingDrafter(NoDrafter):
    """Proposes token 7; what `method` is called for the n-th time raises."""

    reads_tokens = True

    def __init__(self, width, method, calls, token=7):
        self.width = width
        self.calls = dict.fromkeys(METHODS, 0)
        self._method, self._left, self._token = method, calls, token

    def _count(self, method):
        self.calls[method] += 1
        if method == self._method and self.calls[method] > self._left:
            raise MemoryError("no room for drafts")

    def update(self, plan):
        self._count("update")

    def propose(self, columns, rows, counts):
        self._count("propose")
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            known = int(columns.known[row])
            columns.tokens[row, known : known + count] = self._token

    def follow(self, step, spans, hidden, taps):
        self._count("follow")

    def learn(self, row, tokens):
        self._count("learn")

    def ready(self, rows):
        self._count("ready")
        return [self.width] * len(rows)

    def drafts_to_send(self, rows):
        self._count("drafts_to_send")
        return []


def answer(drafter=None, width=0, count=20):
    """(tokens, ready drafts of each step) of one row with `width` drafts where there are any."""
    worker, _ = toy_worker(**({"drafter": drafter} if drafter else {}))
    driver, ready = Driver(worker), []
    driver.join(0, [5, 9, 1, 40, 7])
    driver.step({0: 5})
    while len(driver.sequences[0]["tokens"]) < 5 + count:
        ready.append(driver.step({0: 1 + width}).ready_drafts)
    return driver.sequences[0]["tokens"][: 5 + count], ready


@pytest.mark.parametrize("calls", [0, 3])
@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_those_without_drafts_and_it_is_told_once(method, calls, caplog):
    drafter = FailingDrafter(3, method, calls)
    tokens, ready = answer(GuardedDrafter(drafter), 3)
    assert tokens == answer()[0]
    assert ready[-1] == [0]
    assert caplog.text.count("the drafter failed") == 1
    assert drafter.calls[method] == calls + 1, "it is asked no more"


@pytest.mark.parametrize("token", [-5, 1 << 20])
def test_what_is_no_id_becomes_one(token):
    drafter = FailingDrafter(3, "none", 0, token)
    tokens, ready = answer(GuardedDrafter(drafter, vocabulary=97), 3)
    assert tokens == answer()[0] and ready[-1] == [3]


class Ready(NoDrafter):
    width, reports_ready = 8, True

    def __init__(self, said, fails=()):
        self.said, self.fails = said, fails

    def ready(self, rows):
        return self.said

    def add_corpus(self, corpus):
        raise MemoryError("no room for a text")

    def remove_corpus(self, corpus):
        raise MemoryError("no room for a text")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ([9, -2, 2], [4, 0, 2]),
        ([], []),
        ([1], [0, 0, 0]),
        ([1] * 4, [0, 0, 0]),
        ([None] * 3, [0, 0, 0]),
        (5, [0, 0, 0]),
    ],
)
def test_what_it_is_ready_with_is_checked(said, wanted):
    drafter = GuardedDrafter(Ready(said), 97, width=4)
    assert drafter.ready([0, 1, 2]) == wanted and drafter.reports_ready and drafter.width == 4


@pytest.mark.parametrize("change", ["add_corpus", "remove_corpus"])
def test_a_corpus_that_is_not_taken_changes_nothing_else(change):
    drafter = GuardedDrafter(Ready([3]))
    assert "no room for a text" in getattr(drafter, change)(None)
    assert drafter.ready([0]) == [3]
    failed = GuardedDrafter(Ready([3, 3]))
    failed.ready([0])
    assert "failed" in getattr(failed, change)(None)


def test_one_of_several_ranks_raises_what_it_raised():
    """The others would go on with drafts that this one does not have."""
    drafter = GuardedDrafter(FailingDrafter(3, "ready", 0), alone=False)
    with pytest.raises(MemoryError, match="room"):
        drafter.ready([0])


def missing(self) -> Any:
    raise AttributeError("never")


class Reticent(NoDrafter):
    width = 3
    text_bytes = nbytes = cast("Any", property(missing))

    @property
    def corpora(self) -> dict[str, int]:
        return missing(self)


def test_numbers_that_it_cannot_tell_end_nothing():
    """/server_info asks for them."""
    drafter = GuardedDrafter(Reticent(), 97)
    drafter.attach(cast("Any", None))
    assert (drafter.nbytes, drafter.text_bytes, drafter.corpora) == (0, 0, {})
