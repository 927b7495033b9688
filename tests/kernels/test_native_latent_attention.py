"""Native attention over latents: against the slow twin and the definition, and bitwise itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from every_isa import FLOATS as USABLE
from every_isa import load_kernels, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_attention import Sequences

from vivace.platforms.attention import AttentionLayer, LatentLayer
from vivace.platforms.cpu.native import Arena
from vivace.platforms.cpu.native_attention import NativeAttention, rotary_attend_latent
from vivace.platforms.ops.attention import ReferenceAttention, RotaryAttendLatent
from vivace.platforms.ops.elementwise import rotary
from vivace.platforms.ops.paged_cache import PagedCache

LONGEST = 2048
KV = [torch.float32, torch.bfloat16, torch.int8]
SHAPES = [(16, 512, 64), (5, 32, 16), (3, 24, 8), (40, 48, 16), (1, 16, 16)]
"""heads, latent and rope numbers"""
TABLE = torch.cat(
    [
        f(torch.arange(LONGEST)[:, None] * 0.37 ** torch.arange(1, 33))
        for f in (torch.cos, torch.sin)
    ],
    1,
)
pytestmark = needs_kernels


def make_layer(shape, window=None, index=0):
    heads, latent, rope = shape
    scale = (latent + rope) ** -0.5
    return LatentLayer(
        index=index, heads=heads, latent_dim=latent, rope_dim=rope, scale=scale, window=window
    )


class LatentSequences(Sequences):
    """Rows with all their queries and latents, of which steps compute parts."""

    def __init__(self, layer, lengths, page_size, dtype, seed=0):
        super().__init__(
            AttentionLayer(index=0, heads=1, kv_heads=1, head_dim=1, scale=1.0),
            lengths,
            page_size,
            dtype,
            seed,
        )
        self.latent_layer = layer
        width = layer.latent_dim + layer.rope_dim
        self.q = [2 * torch.randn(length, layer.heads, width) for length in lengths]
        self.latents = [torch.randn(length, width + 3) for length in lengths]

    def memory(self):
        pool = sum(-(-length // self.page_size) for length in self.lengths)
        memory = PagedCache(
            [self.latent_layer], [pool], self.page_size, self.dtype, torch.device("cpu")
        )
        for part in memory.parts(0):
            part.fill_(-1 if self.dtype == torch.int8 else torch.nan)  # scales of NaN
        return memory

    def latent_inputs(self, spans):
        size, width = self.latent_layer.latent_dim, self.q[0].shape[-1]
        q = torch.cat([self.q[row][begin:end] for row, begin, end in spans])
        kept = torch.cat([self.latents[row][begin:end] for row, begin, end in spans])
        return q[..., :size], q[..., size:], kept[:, :size], kept[:, size:width]

    def run(self, backend, spans):
        step = self.step(spans)
        backend.plan(step)
        return backend.attend_latent(self.latent_layer, *self.latent_inputs(spans), step)


def native(made, threads=1, isa=None, memory=None):
    memory = memory or made.memory()
    return NativeAttention(load_kernels(isa, threads), [made.latent_layer], memory, LONGEST)


def reference(made):
    return ReferenceAttention([made.latent_layer], made.memory(), torch.float32)


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("dtype", KV)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_slow_twin(isa, dtype, shape):
    for window in (None, 9):
        made = LatentSequences(make_layer(shape, window), [70, 9, 41, 1], 8, dtype)
        backend, twin = native(made, 2, isa), reference(made)
        for spans in (
            [(0, 0, 69), (1, 0, 3), (2, 0, 17)],
            [(0, 69, 70), (1, 3, 4), (2, 17, 18)],
            [(3, 0, 1), (2, 18, 41), (1, 4, 9)],
        ):
            found, wanted = made.run(backend, spans), made.run(twin, spans)
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", KV)
def test_long_rows_of_several_segments_equal_the_slow_twin(dtype):
    made = LatentSequences(make_layer((3, 24, 8), 600), [1300, 520], 16, dtype)
    for layer in (made.latent_layer, replace(made.latent_layer, window=None)):
        made.latent_layer = layer
        backend, twin = native(made, 3), reference(made)
        for spans in ([(0, 0, 1299), (1, 0, 519)], [(0, 1299, 1300), (1, 519, 520)]):
            found, wanted = made.run(backend, spans), made.run(twin, spans)
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


@st.composite
def cuts(draw):
    """Rows, and the steps in which they are computed: whole, in chunks, mixed."""
    lengths = draw(
        st.lists(st.sampled_from([1, 15, 64, 65, 130, 513, 700]), min_size=1, max_size=3)
    )
    done, steps = [0] * len(lengths), []
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        spans = []
        for row, length in enumerate(lengths):
            left = length - done[row]
            if left and (draw(st.booleans()) or row == len(lengths) - 1):
                count = min(left, draw(st.sampled_from([1, 2, 7, 100, 400])))
                spans.append((row, done[row], done[row] + count))
                done[row] += count
        if spans:
            steps.append(spans)
    return lengths, steps


@settings(max_examples=25, deadline=None)
@given(
    cuts(),
    st.sampled_from(KV),
    st.sampled_from([(3, 24, 8), (34, 32, 16)]),
    st.sampled_from([None, 50, 520]),
)
def test_a_token_has_the_same_bits_however_it_is_computed(made_cuts, dtype, shape, window):
    lengths, steps = made_cuts
    made = LatentSequences(make_layer(shape, window), lengths, 16, dtype)
    whole = [made.run(native(made), [(row, 0, length)]) for row, length in enumerate(lengths)]
    backend = native(made, 3)
    for spans in steps:
        found = made.run(backend, spans).split([end - begin for _, begin, end in spans])
        for (row, begin, end), part in zip(spans, found, strict=True):
            assert torch.equal(part, whole[row][begin:end])


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("shape", [(16, 512, 64), (70, 32, 16)])
def test_threads_that_share_a_row_change_no_bit(isa, shape):
    made = LatentSequences(make_layer(shape), [1200, 900], 16, torch.bfloat16)
    results = []
    for threads in (1, 3):
        memory = made.memory()
        for part in memory.parts(0):
            part.copy_(torch.randn(part.shape, generator=torch.Generator().manual_seed(1)))
        backend = native(made, threads, isa, memory)
        for _ in range(2):  # arrivals are back at zero
            results.append(made.run(backend, [(0, 1199, 1200), (1, 899, 900)]))
        results.append(
            torch.cat([made.run(backend, [(row, n - 1, n)]) for row, n in enumerate(made.lengths)])
        )
    assert all(torch.equal(results[0], result) for result in results[1:])


@pytest.mark.parametrize("shape", [(4, 64, 64), (5, 32, 16)])
@pytest.mark.parametrize("dtype", KV)
def test_rotation_and_store_are_one_operation(shape, dtype):
    """Parts of one size lie together in memory, others apart."""
    made = LatentSequences(make_layer(shape), [50, 33], 16, dtype)
    cos_sin = TABLE[:, : shape[2] // 2], TABLE[:, 32 : 32 + shape[2] // 2]
    cos_sin = torch.cat(cos_sin, 1).contiguous()
    spans, outcomes = [(0, 0, 50), (1, 0, 33)], []
    for backend, op in (
        (native(made), rotary_attend_latent),
        (reference(made), RotaryAttendLatent(rotary)),
    ):
        step: Any = made.step(spans)
        step.attention = backend
        q, q_rope, latent, rope = made.latent_inputs(spans)
        found = op(made.latent_layer, q, q_rope, latent, rope, cos_sin, step)
        kept = [part.float().nan_to_num() for part in backend._memory.parts(0)]
        outcomes.append((found, q_rope, rope, *kept))
    for found, wanted in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_captured_steps_replay_with_fewer_rows():
    made = LatentSequences(make_layer((5, 32, 16)), [40, 30, 20, 10], 8, torch.bfloat16)
    memory = made.memory()
    backend = native(made, 2, None, memory)
    for row, length in enumerate(made.lengths):
        made.run(backend, [(row, 0, length - 2)])
    spans = [(row, length - 2, length - 1) for row, length in enumerate(made.lengths)]
    later = [(row, length - 1, length) for row, length in enumerate(made.lengths[:2])]
    step, inputs = made.step(spans), [x.clone() for x in made.latent_inputs(spans)]
    kernels = load_kernels(None, 2)
    with kernels.capture(Arena()) as graph:
        backend.plan(step)
        q, q_rope, latent, rope = inputs
        out = backend.attend_latent(made.latent_layer, q, q_rope, latent, rope, step)
    backend.plan(step)
    graph.run(4)
    assert torch.equal(out, made.run(native(made, 1, None, memory), spans))
    for buffer, new in zip(inputs, made.latent_inputs(later), strict=True):
        buffer[:2] = new
    after = made.step(later)
    step.slot_mapping[:2], step.page_table[:2] = after.slot_mapping, after.page_table
    step.context_lens[:2] = after.context_lens
    graph.run(2)
    assert torch.equal(out[:2], made.run(native(made, 1, None, memory), later))


def test_numbers_that_nobody_sees_do_not_spread():
    """NaN in a later token, and in front of a window, stays there."""
    made = LatentSequences(make_layer((4, 32, 16), 20), [60], 8, torch.float32)
    wanted = made.run(native(made), [(0, 0, 60)])
    made.latents[0][30] = torch.nan
    found = made.run(native(made), [(0, 0, 60)])
    assert torch.equal(found[:30], wanted[:30]) and torch.equal(found[50:], wanted[50:])
    assert found[30:50].isnan().all()


def test_a_memory_of_another_type_is_refused():
    made = LatentSequences(make_layer((4, 32, 16)), [60], 8, torch.float16)
    with pytest.raises(ValueError, match="float16"):
        native(made)


def test_a_layer_of_another_backend_is_refused():
    made = LatentSequences(make_layer((4, 32, 16)), [60], 8, torch.float32)
    backend = native(made)
    made.latent_layer = replace(made.latent_layer, heads=2)
    with pytest.raises(ValueError, match="backend"):
        made.run(backend, [(0, 0, 1)])
