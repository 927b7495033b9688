"""Every attention backend against the definition, over made-up steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from vivace.platforms.attention import AttentionLayer, HostStep, StepPages
from vivace.platforms.cpu.attention import CpuAttention
from vivace.platforms.cpu.deterministic import BatchInvariantAttention
from vivace.platforms.ops.attention import ReferenceAttention
from vivace.platforms.ops.paged_cache import PagedCache

BACKENDS = [CpuAttention, BatchInvariantAttention]
POOLS = {1: 420, 16: 96}
"""page size -> pages"""


@dataclass(frozen=True)
class MadeStep:
    host: HostStep
    slot_mapping: torch.Tensor
    page_table: torch.Tensor

    @property
    def context_lens(self):
        return torch.from_numpy(self.host.context_lens)

    @property
    def groups(self):
        return (StepPages(slot_mapping=self.slot_mapping, page_table=self.page_table),)


def made_step(spans, page_size, *, scattered, seed=0):
    """Spans are (tokens before, tokens now); every row gets pages of its own."""
    random = np.random.default_rng(seed)
    pool = POOLS[page_size]
    free = list(random.permutation(pool) if scattered else range(pool))
    counts = np.array([count for _, count in spans])
    lengths = np.array([before + count for before, count in spans])
    used = -(-lengths // page_size)
    table = np.full((len(spans), used.max()), pool, np.int64)
    slots = []
    for row, (before, count) in enumerate(spans):
        table[row, : used[row]] = [free.pop(0) for _ in range(used[row])]
        positions = np.arange(before, before + count)
        slots.append(table[row, positions // page_size] * page_size + positions % page_size)
    host = HostStep(
        starts=np.concatenate(([0], counts.cumsum())),
        context_lens=lengths,
        decode=bool((counts == 1).all()),
    )
    return MadeStep(host, torch.from_numpy(np.concatenate(slots)), torch.from_numpy(table))


def filled_memory(layer, page_size, dtype):
    pool = POOLS[page_size]
    memory = PagedCache([layer], [pool], page_size, dtype, torch.device("cpu"))
    memory.layers[0][:pool].copy_(torch.randn(memory.layers[0][:pool].shape))
    return memory


def run(backend_type, layer, step, page_size, dtype, *, adjacent=False, kv_dtype=None):
    torch.manual_seed(1)
    memory = filled_memory(layer, page_size, kv_dtype or dtype)
    total = len(step.slot_mapping)
    q = torch.randn(total, layer.heads, layer.head_dim).to(dtype)
    kv = torch.randn(total, 2 * layer.kv_heads, layer.head_dim).to(dtype)
    k, v = kv.chunk(2, dim=1)
    if not adjacent:
        k, v = k.contiguous(), v.contiguous()
    backend = backend_type([layer], memory, q.dtype)
    backend.plan(step)
    return backend.attend(layer, q, k, v, step), memory.layers[0]


def shaped(**changes):
    values = {"index": 0, "heads": 6, "kv_heads": 2, "head_dim": 16, "scale": 0.3}
    return AttentionLayer(**{**values, **changes})


STEPS = {
    "one row": [(37, 1)],
    "first token": [(0, 1)],
    "decode of unequal rows": [(40, 1), (3, 1), (0, 1), (90, 1), (17, 1), (16, 1), (88, 1)],
    "decode of equal rows": [(20, 1), (20, 1), (20, 1)],
    "prefill": [(0, 33)],
    "two prompts": [(0, 5), (0, 40)],
    "chunk behind a prefix": [(21, 30)],
    "everything at once": [(0, 12), (33, 9), (5, 1), (70, 1), (16, 3)],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", STEPS)
def test_equals_the_definition(backend, page_size, name):
    for layer in (
        shaped(),
        shaped(window=7),
        shaped(soft_cap=1.5),
        shaped(window=30, soft_cap=2.0),
        shaped(sinks=torch.linspace(-2, 3, 6)),
        shaped(window=7, soft_cap=2.0, sinks=torch.linspace(3, -2, 6)),
        shaped(chunk=9),
        shaped(chunk=24, sinks=torch.linspace(3, -2, 6)),
    ):
        for scattered in (True, False):
            step = made_step(STEPS[name], page_size, scattered=scattered)
            expected, expected_kv = run(ReferenceAttention, layer, step, page_size, torch.float32)
            found, kv = run(backend, layer, step, page_size, torch.float32, adjacent=scattered)
            torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
            assert torch.equal(kv, expected_kv)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_is_close(backend, dtype):
    step = made_step(STEPS["everything at once"], 16, scattered=True)
    for layer in (shaped(), shaped(window=20)):
        expected, _ = run(ReferenceAttention, layer, step, 16, dtype)
        found, _ = run(backend, layer, step, 16, dtype)
        torch.testing.assert_close(found.float(), expected.float(), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_and_values_may_be_stored_in_another_dtype(backend):
    stored = torch.bfloat16
    for name in ("everything at once", "decode of unequal rows", "one row"):
        step = made_step(STEPS[name], 16, scattered=True)
        for layer in (shaped(), shaped(window=20)):
            expected, _ = run(ReferenceAttention, layer, step, 16, torch.float32, kv_dtype=stored)
            found, _ = run(backend, layer, step, 16, torch.float32, kv_dtype=stored)
            torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def test_long_spans_are_cut_into_blocks():
    step = made_step([(0, 300), (100, 270)], 16, scattered=True)
    for layer in (shaped(), shaped(window=64), shaped(chunk=64), shaped(chunk=120)):
        expected, _ = run(ReferenceAttention, layer, step, 16, torch.float32)
        found, _ = run(CpuAttention, layer, step, 16, torch.float32)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def test_stale_numbers_behind_a_row_are_not_read():
    """NaN in pages of nobody, and in the empty page's neighbors, must not reach a result."""
    layer, step = shaped(), made_step([(20, 1), (4, 1), (33, 1)], 16, scattered=True)
    expected, _ = run(ReferenceAttention, layer, step, 16, torch.float32)
    torch.manual_seed(1)
    memory = filled_memory(layer, 16, torch.float32)
    used = {int(p) for p in step.page_table.reshape(-1)}
    for page in set(range(POOLS[16])) - used:
        memory.layers[0][page] = torch.nan
    q = torch.randn(3, layer.heads, layer.head_dim)
    kv = torch.randn(3, 2 * layer.kv_heads, layer.head_dim)
    backend = CpuAttention([layer], memory, torch.float32)
    backend.plan(step)
    k, v = (part.contiguous() for part in kv.chunk(2, dim=1))
    torch.testing.assert_close(backend.attend(layer, q, k, v, step), expected)


def test_out_buffer_is_filled():
    layer, step = shaped(), made_step([(9, 1), (30, 1)], 16, scattered=True)
    expected, _ = run(CpuAttention, layer, step, 16, torch.float32)
    torch.manual_seed(1)
    memory = filled_memory(layer, 16, torch.float32)
    q = torch.randn(2, layer.heads, layer.head_dim)
    kv = torch.randn(2, 2 * layer.kv_heads, layer.head_dim)
    k, v = (part.contiguous() for part in kv.chunk(2, dim=1))
    out = torch.full((2, layer.heads * layer.head_dim), 7.0)
    backend = CpuAttention([layer], memory, torch.float32)
    backend.plan(step)
    assert backend.attend(layer, q, k, v, step, out=out) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("backend", [*BACKENDS, ReferenceAttention])
@pytest.mark.parametrize(("limit", "first"), [({"chunk": 8}, 16), ({"window": 8}, 14), ({}, 0)])
def test_a_query_sees_the_mean_of_its_chunk_or_window(backend, limit, first):
    """Scores are all equal."""
    layer, step = shaped(scale=0.0, **limit), made_step([(0, 22)], 16, scattered=True)
    found, memory = run(backend, layer, step, 16, torch.float32)
    values = memory[step.page_table[0]][:, :, 1].flatten(0, 1)[first:22].mean(0)
    expected = values.repeat_interleave(3, 0).flatten()
    torch.testing.assert_close(found[21], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", [*BACKENDS, ReferenceAttention])
def test_a_sink_takes_its_part_of_the_softmax(backend):
    """One key of score 0 and a sink of score s: the value counts 1 / (1 + e^s)."""
    sinks = torch.tensor([0.0, 1.0, -1.0, 2.0, 5.0, -torch.inf])
    layer, step = shaped(sinks=sinks, scale=0.0), made_step([(0, 1)], 16, scattered=True)
    found, _ = run(backend, layer, step, 16, torch.float32)
    plain, _ = run(backend, shaped(scale=0.0), step, 16, torch.float32)
    part = 1 / (1 + sinks.exp())
    expected = plain.view(6, 16) * part[:, None]
    torch.testing.assert_close(found.view(6, 16), expected, rtol=1e-5, atol=1e-6)
