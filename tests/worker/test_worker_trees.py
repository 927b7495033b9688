"""Trees of drafts in the worker: whatever branches there are, tokens are those without drafts."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from drafted_rows import PROMPT, run_beside, run_row
from scripted_trees import ScriptedTreeDrafter
from toy_model import VOCABULARY

from vivace.protocol.messages import LogprobOptions
from vivace.protocol.tasks import Generate

TREES = ("greedy", "sampled", "penalties", "minimum")
"""kinds of requests"""


def run(kind, width, script=None, *, operations=None, pages=16, kv=torch.float32, **wanted):
    drafter = None if script is None else ScriptedTreeDrafter(width, script)
    tokens, results, kept = run_row(
        kind,
        width,
        drafter,
        operations=operations,
        wanted=wanted,
        page_size=pages,
        kv_dtype=kv,
    )
    assert not any(result.bad for result in results)
    if operations in ("eager", "captured"):  # others take these drafts as a chain
        for result in results[1:] if width else []:
            assert sum(result.accepted_drafts) == len(result.tokens[0]) - 1
            assert max(result.accepted_drafts, default=0) <= 1
    return tokens, results, kept


@cache
def plain_run(kind, operations, pages=16, kv=torch.float32):
    return run(kind, 0, operations=operations, pages=pages, kv=kv)


def branches(tokens, seed, quality):
    """A script of random trees: somewhere in them the tokens that come, elsewhere equal ones,
    wrong ones, doubled ones."""

    def script(known, count):
        chance = random.Random(f"{seed} {len(known)}")
        drafts, parents, right, at = [], [], -1, len(known)
        for index in range(count):
            coming = tokens[at] if at < len(tokens) else 0
            if chance.random() < quality:
                parents.append(right)
                drafts.append(coming)
                right, at = index, at + 1
            else:
                parents.append(chance.randrange(-1, index))
                drafts.append(chance.choice([coming, chance.randrange(VOCABULARY)]))
        return drafts, parents

    return script


@pytest.mark.parametrize("operations", ["torch", "eager", "captured", "delayed"])
@pytest.mark.parametrize("kind", TREES)
def test_the_same_tokens_and_stored_numbers_whatever_branches_there_are(kind, operations):
    plain, steps, kept = plain_run(kind, operations)
    for width, quality in ((1, 1.0), (5, 0.5), (5, 0.9), (7, 0.0)):
        tokens, results, found = run(
            kind, width, branches(plain, width, quality), operations=operations
        )
        assert tokens[: len(plain)] == plain
        if operations in ("eager", "captured"):
            assert all(torch.equal(*pair) for pair in zip(found, kept, strict=True))
        if operations != "torch" and quality >= 0.5:  # torch's attention takes chains only
            assert len(results) < 0.75 * len(steps)


@pytest.mark.parametrize("pages", [1, 4])
@pytest.mark.parametrize("kv", [torch.bfloat16, torch.int8])
def test_pages_and_types_of_what_is_stored_do_not_matter(pages, kv):
    plain, _, kept = plain_run("sampled", "captured", pages, kv)
    script = branches(plain, 3, 0.6)
    tokens, _, found = run("sampled", 7, script, operations="captured", pages=pages, kv=kv)
    assert tokens[: len(plain)] == plain
    assert all(torch.equal(*pair) for pair in zip(found, kept, strict=True))


def test_numbers_beside_tokens_are_those_of_single_tokens():
    """Log-probabilities and hidden states."""
    wanted = {
        "logprobs": LogprobOptions(start=-1, top=3, token_ids=(4, 5)),
        "task": Generate(hidden_state_start=0),
    }
    plain, steps, _ = run("penalties", 0, operations="eager", **wanted)
    script = branches(plain, 1, 0.6)
    tokens, results, _ = run("penalties", 6, script, operations="eager", **wanted)
    assert tokens[: len(plain)] == plain and len(results) < len(steps)
    scores = [[one for result in run for one in result.logprobs[0]] for run in (steps, results)]
    assert scores[1][: len(scores[0])] == scores[0]
    states = [
        [number for result in run for number in result.payloads[0].numbers()]
        for run in (steps, results)
    ]
    assert states[1][: len(states[0])] == states[0]


def test_a_row_is_drafted_for_beside_others_and_prompts():
    alone = [plain_run(kind, "captured")[0] for kind in TREES]
    right = {tuple(tokens[: len(PROMPT) + 1]): tokens for tokens in alone}

    def script(known, count):
        return branches(right.get(tuple(known[: len(PROMPT) + 1]), []), 0, 0.6)(known, count)

    chance, drafter = random.Random(0), ScriptedTreeDrafter(5, script)
    found = run_beside(
        drafter, TREES, lambda: 1 + chance.randrange(6), (3, 2), operations="captured"
    )
    for tokens, wanted in zip(found, alone, strict=True):
        assert tokens[: len(wanted)] == wanted
