"""A row of a worker with a drafter: what requests may want, and what came of it."""

from __future__ import annotations

import numpy as np
import torch
from delayed_platform import DelayedPlatform
from toy_model import Driver, toy_worker

PROMPT = [5, 9, 1, 40, 7]
COUNT = 40
"""tokens that a row draws at least"""
KINDS = {
    "greedy": {},
    "sampled": {"temperature": 1.1, "seed": 11},
    "cut": {"temperature": 0.9, "seed": 3, "top_p": 0.8, "top_k": 20},
    "penalties": {
        "temperature": 0.7,
        "seed": 5,
        "frequency_penalty": 0.9,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.3,
    },
    "minimum": {"min_new_tokens": 12, "stop_ids": tuple(range(40))},
    "bias": {"logit_bias": {3: 4.0, 8: -9.0}, "temperature": 0.8, "seed": 2},
}


def run_row(kind, width=0, drafter=None, *, operations=None, wanted=None, **settings):
    """(tokens, StepResults, what pages hold of the tokens) of a row whose decode spans have `width`
    drafts. `operations`: of a toy worker, or "delayed"; `wanted`: by the request, beside its kind;
    `settings`: of the worker"""
    if operations == "delayed":
        settings["platform"] = DelayedPlatform()
    else:
        settings["operations"] = operations
    if drafter is not None:
        settings["drafter"] = drafter
    worker, _ = toy_worker(**settings)
    driver = Driver(worker)
    driver.join(0, PROMPT, **(wanted or {}), **KINDS[kind])
    results = [driver.step({0: len(PROMPT)})]
    sequence = driver.sequences[0]
    while len(sequence["tokens"]) < len(PROMPT) + COUNT and not results[-1].bad:
        results.append(driver.step({0: 1 + width}))
    return sequence["tokens"], results, stored(worker, sequence)


def stored(worker, sequence):
    """What layers hold of the tokens that are computed, as far as the row has pages."""
    kv, pages = worker._kv, np.array(sequence["pages"])
    places = np.arange(min(len(PROMPT) + COUNT - 1, len(pages) * kv.page_size))
    slots = pages[places // kv.page_size] * kv.page_size + places % kv.page_size
    chosen = torch.from_numpy(slots)
    return [part.flatten(0, 1)[chosen] for layer in range(3) for part in kv.parts(layer)]


def run_beside(drafter, kinds, draw, chunks, **settings):
    """Tokens of rows of these kinds that come one after the other, in parts of `chunks`; their
    decode spans have `draw()` tokens."""
    worker, _ = toy_worker(drafter=drafter, **settings)
    driver = Driver(worker)
    for row, kind in enumerate(kinds):
        driver.join(row, PROMPT, **KINDS[kind])
        for chunk in chunks:
            driver.step({row: chunk, **{other: draw() for other in range(row)}})
    while any(len(one["tokens"]) < len(PROMPT) + COUNT for one in driver.sequences.values()):
        driver.step({row: draw() for row in driver.sequences})
    return [driver.sequences[row]["tokens"] for row in range(len(kinds))]
