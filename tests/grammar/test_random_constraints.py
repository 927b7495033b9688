"""A small part of what tools/fuzz_grammars.py does: random constraints are compiled or refused, in
time, and what a mask allows may follow."""

from __future__ import annotations

import time
from random import Random

import numpy as np
import pytest
from grammar_kit import BACKEND, SIZE
from random_constraints import random_constraint

from vivace.grammar.backend import GrammarError
from vivace.grammar.masks import mask_words

SLOW = 2.0
"""seconds of this thread"""
STEPS = 12


@pytest.mark.parametrize("seed", range(4))
def test_random_constraints_are_obeyed_or_refused(seed: int) -> None:
    mask = np.zeros(mask_words(SIZE), np.int32)
    for number in range(60):
        chance = Random(f"{seed}/{number}")
        constraint = random_constraint(chance)
        begun = time.thread_time()
        try:
            matcher = BACKEND.compile(constraint)
        except GrammarError:
            continue
        finally:
            assert time.thread_time() - begun < SLOW, (seed, number)
        for _ in range(STEPS):
            matcher.fill(mask)
            ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            taken = len(ids) and matcher.accept([int(ids[chance.randrange(len(ids))])])
            assert taken or matcher.error, (seed, number)
            if matcher.ended:
                break
