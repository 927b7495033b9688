"""Recurrent layers by the native kernels against their reference, one token at a time, and what
does not change a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from every_isa import USABLE, load_kernels, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.platforms.attention import (
    HostStep,
    RecurrentInputs,
    RecurrentLayer,
    RecurrentWeights,
    StepStates,
)
from vivace.platforms.cpu.graphs import CpuGraphs
from vivace.platforms.cpu.native_ops import NativeOps
from vivace.platforms.cpu.native_recurrence import NativeRecurrence
from vivace.platforms.ops import elementwise
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.ops.sequential import SequentialLayers
from vivace.platforms.platform import StepShape
from vivace.worker.step_input import StepInput

pytestmark = needs_kernels
CPU = torch.device("cpu")
SLOTS = 24
LAYERS = st.builds(
    lambda key_heads, group, key_dim, value_dim, kernel: RecurrentLayer(
        index=0,
        key_heads=key_heads,
        value_heads=key_heads * group,
        key_dim=key_dim,
        value_dim=value_dim,
        kernel=kernel,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 5, 16, 24, 40]),
    st.sampled_from([1, 7, 16, 24, 32, 33, 50, 80]),
    st.integers(2, 5),
)
LAYER = RecurrentLayer(index=0, key_heads=2, value_heads=4, key_dim=24, value_dim=40, kernel=4)


def spread(tokens: int, heads: int, *sizes: int) -> list[Tensor]:
    """Parts of one projection, as a model has them."""
    whole = torch.randn(tokens, heads, sum(sizes) + 1)
    return list(whole.split([*sizes, 1], -1)[:-1])


def make_inputs(layer: RecurrentLayer, tokens: int) -> RecurrentInputs:
    values = layer.group * layer.value_dim
    q, k, v = spread(tokens, layer.key_heads, layer.key_dim, layer.key_dim, values)
    b, a = spread(tokens, layer.key_heads, layer.group, layer.group)
    return RecurrentInputs(q=q, k=k, v=v, a=a * 4, b=b)


def make_weights(layer: RecurrentLayer) -> RecurrentWeights:
    return RecurrentWeights(
        conv=torch.randn(layer.kernel, layer.channels),
        decay=torch.rand(layer.value_heads) * 4,
        dt_bias=torch.randn(layer.value_heads),
    )


def make_memory(layer: RecurrentLayer) -> PagedCache:
    torch.manual_seed(5)
    memory = PagedCache([layer], [1], 4, torch.float32, CPU, slots=SLOTS)
    for part in memory.parts(0):
        part.copy_(torch.randn(part.shape))
    return memory


def make_step(counts: list[int], drafts: list[int] | None, *, decode: bool = False) -> Any:
    """Each span reads a slot and writes others."""
    spans, ahead = len(counts), 1 + max(drafts or [0])
    starts = np.concatenate([[0], np.cumsum(counts)])
    places = torch.arange(spans * (1 + ahead)).view(spans, 1 + ahead) + 1
    lengths = np.array(counts)
    return StepInput(
        input_ids=torch.zeros(starts[-1], dtype=torch.int64),
        positions=torch.zeros(starts[-1], dtype=torch.int64),
        query_starts=torch.from_numpy(starts),
        context_lens=torch.from_numpy(lengths),
        groups=(),
        logits_indices=torch.from_numpy(starts[1:] - 1),
        attention=None,  # pyright: ignore[reportArgumentType]
        shape=None,
        states=StepStates(
            read=places[:, 0].contiguous(),
            write=places[:, 1:],
            drafts=None if drafts is None else np.array(drafts, np.int64),
        ),
        host=HostStep(starts=starts, context_lens=lengths, decode=decode),
    )


def take(inputs: RecurrentInputs, tokens: slice) -> RecurrentInputs:
    parts = (inputs.q, inputs.k, inputs.v, inputs.a, inputs.b)
    q, k, v, a, b = (part[tokens] for part in parts)
    return RecurrentInputs(q=q, k=k, v=v, a=a, b=b)


@settings(max_examples=60, deadline=None)
@given(
    isa=st.sampled_from(USABLE or [""]),
    threads=st.sampled_from([1, 2]),
    layer=LAYERS,
    spans=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=4),
    drafting=st.booleans(),
)
def test_spans_of_tokens_and_drafts(isa, threads, layer, spans, drafting):
    """What states say, and the states behind the last known token and behind each draft; all other
    slots stay as they were."""
    counts = [count for count, _ in spans]
    drafts = [min(ahead, count - 1) for count, ahead in spans] if drafting else None
    decode = not drafting and all(count == 1 for count in counts)
    step, inputs = make_step(counts, drafts, decode=decode), make_inputs(layer, sum(counts))
    weights, found, wanted = make_weights(layer), make_memory(layer), make_memory(layer)
    kernels = load_kernels(isa, threads)
    said = NativeRecurrence(kernels, found).recur(layer, inputs, weights, step)
    exact = SequentialLayers(wanted).recur(layer, inputs, weights, step)
    torch.testing.assert_close(said, exact, rtol=2e-4, atol=2e-5)
    for mine, theirs in zip(found.parts(0), wanted.parts(0), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    untouched = set(range(SLOTS)) - set(step.states.write.flatten().tolist())
    before = make_memory(layer).parts(0)
    for mine, same in zip(found.parts(0), before, strict=True):
        assert torch.equal(mine[list(untouched)], same[list(untouched)])


@pytest.mark.parametrize("isa", USABLE or [None])
@pytest.mark.parametrize("chunks", [[1] * 12, [5, 7], [11, 1], [3, 2, 1, 6]])
def test_chunks_and_threads_change_no_bit(isa, chunks):
    inputs, weights = make_inputs(LAYER, 12), make_weights(LAYER)
    results = list[tuple[Tensor, ...]]()
    for threads in (1, 2):
        for cuts in ([12], chunks):
            memory, at, said = make_memory(LAYER), 0, list[Tensor]()
            recur = NativeRecurrence(load_kernels(isa, threads), memory).recur
            slots = [1, 2]
            for count in cuts:
                step = make_step([count], None, decode=count == 1)
                step.states.read.fill_(slots[0])
                step.states.write.fill_(slots[1])
                slots.reverse()
                said.append(recur(LAYER, take(inputs, slice(at, at + count)), weights, step))
                at += count
            state, conv = memory.parts(0)
            results.append((torch.cat(said), state[slots[0]], conv[slots[0]]))
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert torch.equal(one, same)


def test_a_replay_of_fewer_rows_is_the_step():
    kernels, memory, weights = load_kernels(None), make_memory(LAYER), make_weights(LAYER)
    inputs, step = make_inputs(LAYER, 6), make_step([1] * 6, None, decode=True)
    recur = NativeRecurrence(kernels, memory).recur
    graph, said = CpuGraphs(kernels).capture(
        lambda: recur(LAYER, inputs, weights, step), StepShape(6, 1)
    )
    few = make_step([1] * 4, None, decode=True)
    wanted = recur(LAYER, take(inputs, slice(0, 4)), weights, few)
    left = [part.clone() for part in memory.parts(0)]
    graph.run(4)
    assert torch.equal(said[:4], wanted)
    for part, same in zip(memory.parts(0), left, strict=True):
        assert torch.equal(part, same)


def test_counts_of_drafts_are_never_captured():
    """A replay would read memory that is the host's no more."""
    kernels = load_kernels(None)
    recur = NativeRecurrence(kernels, make_memory(LAYER)).recur
    inputs, weights, step = make_inputs(LAYER, 6), make_weights(LAYER), make_step([3, 3], [2, 2])
    with pytest.raises(ValueError, match="captured"):
        CpuGraphs(kernels).capture(lambda: recur(LAYER, inputs, weights, step), StepShape(2, 3))


@settings(max_examples=40, deadline=None)
@given(
    isa=st.sampled_from(USABLE or [""]),
    rows=st.integers(1, 6),
    groups=st.integers(1, 3),
    shared=st.integers(1, 3),
    width=st.integers(1, 70),
)
def test_gated_norm_and_gate(isa, rows, groups, shared, width):
    ops, heads = NativeOps(load_kernels(isa)), groups * shared
    x, weight = torch.randn(rows, heads, width), torch.randn(width)
    (gate,) = spread(rows, groups, shared * width)
    exact = elementwise.gated_rms_norm(x.double(), weight.double(), gate.double(), 1e-6)
    found = ops.gated_rms_norm(x, weight, gate, 1e-6)
    torch.testing.assert_close(found.double(), exact, rtol=4e-6, atol=1e-6)
    y = torch.randn(rows, groups * shared * width)
    wanted = elementwise.sigmoid_mul(y.double(), gate.double())
    assert ops.sigmoid_mul(y, gate) is y
    torch.testing.assert_close(y.double(), wanted, rtol=4e-6, atol=1e-6)
