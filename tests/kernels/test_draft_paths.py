"""Keys of a tree of drafts lie where paths say: the numbers have the bits of those of a chain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from every_isa import FLOATS as USABLE
from every_isa import load_kernels, needs_kernels
from test_native_attention import MadeStep, Sequences
from test_native_latent_attention import LatentSequences
from test_native_latent_attention import make_layer as latent_layer

from vivace.platforms.attention import AttentionLayer, StepPages
from vivace.platforms.cpu.native_attention import NativeAttention
from vivace.platforms.ops.attention import ReferenceAttention

LONGEST = 2048
SPARE = 40
"""tokens of the last row, whose places are free for others"""
pytestmark = needs_kernels


@dataclass
class PathStep(MadeStep):
    paths: torch.Tensor | None = None

    @property
    def groups(self):
        return (
            StepPages(slot_mapping=self.slot_mapping, page_table=self.page_table, paths=self.paths),
        )


def grouped(lengths, page_size, dtype, **changes):
    given = {"index": 0, "heads": 6, "kv_heads": 2, "head_dim": 32, "scale": 0.2, **changes}
    return Sequences(AttentionLayer(**given), lengths, page_size, dtype)


def latents(lengths, page_size, dtype, **changes):
    return LatentSequences(latent_layer((5, 32, 16), **changes), lengths, page_size, dtype)


MADE = {
    "full": (grouped, {}),
    "window": (grouped, {"window": 7}),
    "chunk": (grouped, {"chunk": 9}),
    "one head": (grouped, {"heads": 1, "kv_heads": 1, "head_dim": 16}),
    "latents": (latents, {}),
    "latents in a window": (latents, {"window": 7}),
}


def backend(made, memory, kind, threads):
    layer = made.latent_layer if isinstance(made, LatentSequences) else made.layer
    if kind == "reference":
        return ReferenceAttention([layer], memory, torch.float32)
    return NativeAttention(load_kernels(kind, threads), [layer], memory, LONGEST)


def attend(made, attention, step, spans):
    attention.plan(step)
    if isinstance(made, LatentSequences):
        return attention.attend_latent(made.latent_layer, *made.latent_inputs(spans), step)
    return attention.attend(made.layer, *made.inputs(spans), step)


@pytest.mark.parametrize("kind", ["reference", *USABLE])
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("page_size", "threads"), [(1, 1), (16, 3)])
def test_keys_may_lie_elsewhere(kind, name, dtype, page_size, threads):
    make, changes = MADE[name]
    lengths = [150, 5, 131, 1, 64]
    made = make([*lengths, SPARE], page_size, dtype, **changes)
    results = []
    for counts in ([0] * 5, [9, 5, 3, 1, 0]):
        memory = made.memory()
        attention = backend(made, memory, kind, threads)
        for row, length in enumerate(lengths):
            if length > 1:
                attend(made, attention, made.step([(row, 0, length - 1)]), [(row, 0, length - 1)])
        spans = [(row, length - 1, length) for row, length in enumerate(lengths)]
        plain = made.step(spans)
        paths = torch.full((5, 10), 0)
        step = PathStep(**vars(plain), paths=paths)
        free = find_slots(made, len(lengths), range(SPARE))[torch.randperm(SPARE)]
        for row, count in enumerate(counts):
            own, free = free[:count], free[count:]
            paths[row, 0] = count
            paths[row, 1 : 1 + count] = own
            if count:
                places = find_slots(made, row, range(lengths[row] - count, lengths[row]))
                memory.copy_tokens(0, places, own)
                for part in memory.parts(0):
                    part.flatten(0, 1)[places] = -1 if dtype == torch.int8 else torch.nan
                step.slot_mapping[row] = own[-1]
        results.append(attend(made, attention, step, spans))
    assert results[0].isfinite().all()
    assert torch.equal(*results)


def find_slots(made, row, places):
    at = torch.tensor(list(places))
    pages = torch.from_numpy(made.pages[row])[at // made.page_size]
    return pages * made.page_size + at % made.page_size


def test_paths_that_lead_nowhere_are_refused():
    made = grouped([40, SPARE], 16, torch.float32)
    attention = backend(made, made.memory(), None, 1)
    attend(made, attention, made.step([(0, 0, 39)]), [(0, 0, 39)])
    for path, word in (([3, 1, 2], "lengths"), ([1, 10**6, 0], "paths"), ([-1, 0, 0], "paths")):
        step = PathStep(**vars(made.step([(0, 39, 40)])), paths=torch.tensor([path]))
        with pytest.raises(ValueError, match=word):
            attend(made, attention, step, [(0, 39, 40)])
    step = PathStep(**vars(made.step([(0, 37, 40)])), paths=torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="token"):
        attend(made, attention, step, [(0, 37, 40)])
