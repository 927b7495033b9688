"""Native paged attention against the definition in float64, and bitwise against itself."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from every_isa import FLOATS as USABLE
from every_isa import load_kernels, needs_kernels, opened
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.platforms.attention import AttentionLayer, HostStep, StepPages
from vivace.platforms.cpu.native import Arena, Kernels
from vivace.platforms.cpu.native_attention import NativeAttention, rotary_attend, unsupported
from vivace.platforms.ops.attention import ReferenceAttention, RotaryAttend
from vivace.platforms.ops.cache import dequantize_kv, quantize_kv
from vivace.platforms.ops.elementwise import rotary
from vivace.platforms.ops.paged_cache import PagedCache

LONGEST = 2048
KV = [torch.float32, torch.bfloat16, torch.int8]

LIMITS = [*((n, None) for n in (None, None, 1, 7, 40, 150)), *((None, n) for n in (1, 9, 128, 150))]
KERNELS = {isa: load_kernels(isa) for isa in USABLE}
pytestmark = needs_kernels


@dataclass
class MadeStep:
    slot_mapping: torch.Tensor
    page_table: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor
    host: HostStep
    positions: torch.Tensor
    attention: object = None

    @property
    def groups(self):
        return (StepPages(slot_mapping=self.slot_mapping, page_table=self.page_table),)


class Sequences:
    """Rows with their whole q, k and v, of which steps compute parts. Pages lie scattered."""

    def __init__(self, layer, lengths, page_size, dtype, seed=0):
        torch.manual_seed(seed)
        self.layer, self.lengths, self.page_size, self.dtype = layer, lengths, page_size, dtype
        used = [-(-length // page_size) for length in lengths]
        pool = np.random.default_rng(seed).permutation(sum(used))
        self.pages = np.full((len(lengths), max(used)), sum(used), np.int64)
        for row, count in enumerate(used):
            self.pages[row, :count], pool = pool[:count], pool[count:]
        width = layer.heads + 2 * layer.kv_heads
        self.qkv = [torch.randn(length, width, layer.head_dim) for length in lengths]

    def memory(self):
        pool = sum(-(-length // self.page_size) for length in self.lengths)
        memory = PagedCache([self.layer], [pool], self.page_size, self.dtype, torch.device("cpu"))
        memory.layers[0].fill_(-1 if self.dtype == torch.int8 else torch.nan)  # scales of NaN
        return memory

    def step(self, spans) -> Any:
        """`spans`: (row, first position, end)."""
        rows = [row for row, _, _ in spans]
        counts = np.array([end - begin for _, begin, end in spans])
        positions = [np.arange(begin, end) for _, begin, end in spans]
        slots = [
            self.pages[row, at // self.page_size] * self.page_size + at % self.page_size
            for row, at in zip(rows, positions, strict=True)
        ]
        host = HostStep(
            starts=np.concatenate(([0], counts.cumsum())),
            context_lens=np.array([end for _, _, end in spans]),
            decode=bool((counts == 1).all()),
        )
        return MadeStep(
            slot_mapping=torch.from_numpy(np.concatenate(slots)),
            page_table=torch.from_numpy(self.pages[rows]),
            context_lens=torch.from_numpy(host.context_lens),
            query_starts=torch.from_numpy(host.starts),
            host=host,
            positions=torch.from_numpy(np.concatenate(positions)),
        )

    def inputs(self, spans):
        flat = torch.cat([self.qkv[row][begin:end] for row, begin, end in spans]).flatten(1)
        sizes = [self.layer.heads, self.layer.kv_heads, self.layer.kv_heads]
        parts = flat.split([size * self.layer.head_dim for size in sizes], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.layer.head_dim)) for part in parts)
        return q, k, v

    def run(self, backend, spans):
        step = self.step(spans)
        backend.plan(step)
        return backend.attend(self.layer, *self.inputs(spans), step)

    def stored(self, row, memory):
        """k and v [length, kv_heads, head_dim] as they lie in `memory`."""
        at = np.arange(self.lengths[row])
        slots = self.pages[row, at // self.page_size] * self.page_size + at % self.page_size
        both = dequantize_kv(memory.layers[0].flatten(0, 1)[slots], self.layer.head_dim)
        return both[:, 0], both[:, 1]

    def expected(self, row, memory=None):
        """[length, heads * head_dim] of the whole row, by the definition in float64; `memory`:
        with the numbers that were stored there."""
        layer, length = self.layer, self.lengths[row]
        q, k, v = self.qkv[row].split([layer.heads, layer.kv_heads, layer.kv_heads], dim=1)
        group = layer.heads // layer.kv_heads
        k, v = (
            (dequantize_kv(quantize_kv(x, self.dtype), layer.head_dim) for x in (k, v))
            if memory is None
            else self.stored(row, memory)
        )
        k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * layer.scale
        if layer.soft_cap:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        at = torch.arange(length)
        seen = at[:, None] >= at
        if layer.window:
            seen &= at[:, None] - at < layer.window
        if layer.chunk:
            seen &= at[:, None] // layer.chunk == at // layer.chunk
        scores = scores.masked_fill(~seen, -torch.inf)
        if layer.sinks is not None:
            sinks = layer.sinks.double().view(-1, 1, 1).expand(-1, length, 1)
            scores = torch.cat((scores, sinks), -1)
        weights = scores.softmax(-1)[..., :length]
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def some_sinks(heads):
    return torch.linspace(-3, 6, heads)[torch.randperm(heads)]


def shaped(heads=6, kv_heads=2, head_dim=16, **changes):
    values = {"index": 0, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return AttentionLayer(**{**values, "scale": head_dim**-0.5, **changes})


def native(sequences, isa=None, threads=None, memory=None):
    kernels = KERNELS[isa or USABLE[0]] if threads is None else opened(threads, isa)
    assert isinstance(kernels, Kernels)
    return NativeAttention(kernels, [sequences.layer], memory or sequences.memory(), LONGEST)


def assert_stored(sequences, row, memory):
    """As `quantize_kv` does it, but for a step of few numbers where it is int8."""
    sizes = [sequences.layer.heads, sequences.layer.kv_heads, sequences.layer.kv_heads]
    for x, found in zip(
        sequences.qkv[row].split(sizes, dim=1)[1:], sequences.stored(row, memory), strict=True
    ):
        exact = dequantize_kv(quantize_kv(x, sequences.dtype), sequences.layer.head_dim)
        off = (found.float() - exact.float()).abs()
        step = x.abs().amax(-1, keepdim=True) / 120 if sequences.dtype == torch.int8 else 0.0
        ties = int((off > 1e-5).sum())
        assert (off <= step).all() and ties <= max(1, off.numel() // 100)


@pytest.mark.parametrize(("off", "allowed"), [(0, True), (1, True), (2, False)])
def test_one_stored_number_of_a_short_row_may_round_the_other_way(off, allowed):
    layer, qkv = shaped(heads=1, kv_heads=1), torch.randn(1, 3, 16)
    exact = [
        dequantize_kv(quantize_kv(x, torch.int8), layer.head_dim)
        for x in qkv.split([1, 1, 1], dim=1)[1:]
    ]
    exact[0].flatten()[:off] += qkv[:, 1].abs().max() / 127
    stored = SimpleNamespace(
        layer=layer, qkv=[qkv], dtype=torch.int8, stored=lambda row, memory: exact
    )
    with nullcontext() if allowed else pytest.raises(AssertionError):
        assert_stored(stored, 0, None)


@st.composite
def cases(draw):
    window, chunk = draw(st.sampled_from(LIMITS))
    kv_heads, group = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 3, 7, 14]))
    layer = shaped(
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([16, 48, 64, 80, 128, 256])),
        window=window,
        chunk=chunk,
        soft_cap=draw(st.sampled_from([None, None, 2.0])),
        sinks=some_sinks(kv_heads * group) if draw(st.booleans()) else None,
    )
    lengths = draw(st.lists(st.integers(1, 40) | st.integers(100, 400), min_size=1, max_size=4))
    dtype = draw(st.sampled_from(KV))
    return Sequences(layer, lengths, draw(st.sampled_from([1, 5, 16, 64])), dtype)


@st.composite
def steps(draw, sequences):
    """Steps that compute every row from its start to its end, in spans of any length."""
    done, result = [0] * len(sequences.lengths), []
    while open_rows := [r for r, length in enumerate(sequences.lengths) if done[r] < length]:
        spans = []
        for row in draw(st.lists(st.sampled_from(open_rows), min_size=1, unique=True)):
            left = sequences.lengths[row] - done[row]
            count = draw(st.integers(1, left) | st.just(left) | st.just(max(1, left - 3)))
            spans.append((row, done[row], done[row] + count))
            done[row] += count
        result.append(spans)
    return result


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_steps_follow_the_definition_and_chunks_do_not_matter(data):
    sequences = data.draw(cases())
    isa = data.draw(st.sampled_from(USABLE))
    pieces = [[] for _ in sequences.lengths]
    memory = sequences.memory()
    backend = native(sequences, isa, memory=memory)
    for spans in data.draw(steps(sequences)):
        out = sequences.run(backend, spans)
        counts = [end - begin for _, begin, end in spans]
        for (row, _, _), part in zip(spans, out.split(counts), strict=True):
            pieces[row].append(part)
    whole = native(sequences, isa)
    for row, length in enumerate(sequences.lengths):
        found = torch.cat(pieces[row])
        # A number halfway between two of int8 may be stored as either.
        expected = sequences.expected(row, memory)
        torch.testing.assert_close(found.double(), expected, atol=3e-6, rtol=2e-5)
        assert_stored(sequences, row, memory)
        assert torch.equal(found, sequences.run(whole, [(row, 0, length)]))


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("dtype", KV)
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"window": 300},
        {"sinks": some_sinks(9)},
        {"window": 70, "sinks": some_sinks(9)},
        {"chunk": 300},
        {"chunk": 256, "sinks": some_sinks(9)},
    ],
)
def test_a_token_is_the_same_decoded_alone_in_a_batch_in_a_prompt_and_by_any_threads(
    isa, dtype, limits
):
    layer = shaped(heads=9, kv_heads=3, head_dim=64, **limits)
    sequences = Sequences(layer, [1000, 129, 128, 1, 513], 16, dtype)
    prompt = native(sequences, isa)
    whole = [sequences.run(prompt, [(r, 0, n)]) for r, n in enumerate(sequences.lengths)]
    wanted = [row[-1] for row in whole]
    for threads in (1, 2, 3):
        backend = native(sequences, isa, threads, prompt._memory)
        last = [(row, length - 1, length) for row, length in enumerate(sequences.lengths)]
        assert torch.equal(sequences.run(backend, last), torch.stack(wanted))
        assert torch.equal(sequences.run(backend, last * 7), torch.stack(wanted * 7))
        for row, span in enumerate(last):
            assert torch.equal(sequences.run(backend, [span])[0], wanted[row])
        for count in (2, 7, 8, 13):  # their tiles are shared by threads, too
            some = (0, 4, 1)[: 1 + count % 3]
            spans = [(row, sequences.lengths[row] - count, sequences.lengths[row]) for row in some]
            expected = torch.cat([whole[row][-count:] for row in some])
            assert torch.equal(sequences.run(backend, spans), expected)


def test_what_lies_before_the_window_is_not_read():
    sequences = Sequences(shaped(window=50), [400], 16, torch.float32)
    backend = native(sequences)
    wanted = sequences.run(backend, [(0, 0, 400)])[-3:]
    backend._memory.layers[0][sequences.pages[0, : (398 - 50) // 16]] = torch.nan
    assert torch.equal(sequences.run(backend, [(0, 399, 400)])[0], wanted[-1])
    assert torch.equal(sequences.run(backend, [(0, 397, 400)]), wanted)


def test_what_lies_before_the_chunk_is_not_read():
    sequences = Sequences(shaped(chunk=96), [200], 16, torch.float32)
    backend = native(sequences)
    wanted = sequences.run(backend, [(0, 0, 200)])
    backend._memory.layers[0][sequences.pages[0, : 192 // 16]] = torch.nan
    assert torch.equal(sequences.run(backend, [(0, 199, 200)])[0], wanted[-1])
    assert torch.equal(sequences.run(backend, [(0, 192, 200)]), wanted[-8:])


@pytest.mark.parametrize("isa", USABLE)
def test_sinks_far_above_and_far_below_all_scores(isa):
    sinks = torch.tensor([200.0, -200.0, -torch.inf, 1e4, -1e4, 0.0])
    sequences = Sequences(shaped(head_dim=32, sinks=sinks), [150], 16, torch.float32)
    found = sequences.run(native(sequences, isa), [(0, 0, 150)])
    torch.testing.assert_close(found.double(), sequences.expected(0), atol=3e-6, rtol=2e-5)
    layer = replace(sequences.layer, sinks=None)
    alone = Sequences(layer, [150], 16, torch.float32)
    plain = alone.run(native(alone, isa), [(0, 0, 150)]).unflatten(-1, (6, 32))
    assert torch.equal(found.unflatten(-1, (6, 32))[:, [1, 2, 4]], plain[:, [1, 2, 4]])


@pytest.mark.parametrize(
    "sinks", [torch.zeros(5), torch.zeros(6, dtype=torch.float64), torch.zeros(6, 2)[:, 0]]
)
def test_sinks_of_another_shape_or_type_are_refused(sinks):
    sequences = Sequences(shaped(sinks=sinks), [10], 16, torch.float32)
    with pytest.raises(ValueError, match="sinks"):
        sequences.run(native(sequences), [(0, 0, 10)])


def test_contexts_longer_than_announced_are_not_shared_but_right():
    layer = shaped(heads=4, kv_heads=2, head_dim=32)
    sequences = Sequences(layer, [900], 16, torch.float32)
    backend = native(sequences)
    sequences.run(backend, [(0, 0, 899)])
    small = NativeAttention(KERNELS[USABLE[0]], [layer], backend._memory, 10)
    found = sequences.run(small, [(0, 899, 900)])
    torch.testing.assert_close(found[0].double(), sequences.expected(0)[-1], atol=3e-6, rtol=2e-5)


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_a_nan_stays_in_its_row_and_is_seen_there(isa, dtype):
    sequences = Sequences(shaped(head_dim=32), [200, 150, 30], 16, dtype)
    clean = native(sequences, isa)
    spans = [(0, 0, 200), (1, 0, 150), (2, 0, 30)]
    wanted = sequences.run(clean, spans).split([200, 150, 30])
    for part in (6, 8):  # a key, a value
        poisoned = Sequences(shaped(head_dim=32), [200, 150, 30], 16, dtype)
        poisoned.qkv[1][140, part] = torch.nan
        backend = native(poisoned, isa)
        found = poisoned.run(backend, spans).split([200, 150, 30])
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[2], wanted[2])
        assert torch.equal(found[1][:140], wanted[1][:140])
        heads = found[1][140:].unflatten(-1, (6, 32))
        assert heads[:, :3].isnan().all()
        assert not heads[:, 3:].isnan().any()
        decoded = poisoned.run(backend, [(1, 149, 150), (0, 199, 200)])
        assert decoded[0].unflatten(-1, (6, 32))[:3].isnan().all()
        assert torch.equal(decoded[1], wanted[0][-1])


@pytest.mark.parametrize("dtype", KV)
@pytest.mark.parametrize("limits", [{}, {"window": 100, "sinks": some_sinks(6)}, {"chunk": 100}])
def test_a_captured_decode_replays_with_any_rows_up_to_its_own(dtype, limits):
    layer = shaped(heads=6, kv_heads=3, head_dim=64, **limits)
    lengths = [300, 17, 700, 128, 5, 64, 65, 400]
    sequences = Sequences(layer, lengths, 16, dtype)
    backend = native(sequences)
    for row, length in enumerate(lengths):
        sequences.run(backend, [(row, 0, length)])
    spans = [(row, length - 1, length) for row, length in enumerate(lengths)]
    step, inputs = sequences.step(spans), sequences.inputs(spans)
    table = torch.full((len(lengths), 99), 3, dtype=torch.int64)
    table[:, : step.page_table.shape[1]] = step.page_table
    step.page_table = table
    wanted = backend.attend(layer, *inputs, step)
    with backend._kernels.capture(Arena()) as graph:
        out = backend.attend(layer, *inputs, step)
    for rows in (8, 1, 3, 8):
        out.zero_()
        graph.run(rows)
        assert torch.equal(out[:rows], wanted[:rows])
        assert not out[rows:].any()


@pytest.mark.parametrize("spans", [[(0, 30, 31), (1, 17, 18)], [(0, 20, 31), (1, 17, 18)]])
@pytest.mark.parametrize("field", ["slot_mapping", "page_table", "context_lens", "query_starts"])
@pytest.mark.parametrize("value", [-1, -(2**62), 2**31, 2**62])
def test_contents_that_lead_out_of_the_memory_are_refused_before_a_kernel_runs(spans, field, value):
    sequences = Sequences(shaped(), [31, 18], 16, torch.float32)
    backend, step = native(sequences), sequences.step(spans)
    backend.plan(step)
    getattr(step, field).flatten()[-1] = value
    if field == "query_starts" and step.host.decode:
        backend.plan(step)  # the kernels do not read them
        return
    with pytest.raises(ValueError, match=f"attend: step.{field}"):
        backend.plan(step)


@pytest.mark.parametrize(
    ("field", "row", "value"),
    [
        ("slot_mapping", 0, 5 * 16),
        ("page_table", 0, 5),
        ("context_lens", 0, 33),
        ("context_lens", 0, 10),
        ("context_lens", 1, 0),
        ("query_starts", 0, 1),
        ("query_starts", 1, 13),
    ],
)
def test_the_last_page_is_the_last(field, row, value):
    """The first value of each that is wrong: four pages and the one behind them, 32 positions."""
    sequences = Sequences(shaped(), [31, 18], 16, torch.float32)
    backend, step = native(sequences), sequences.step([(0, 20, 31), (1, 17, 18)])
    getattr(step, field)[row] = value
    with pytest.raises(ValueError, match=r"^attend: step"):
        backend.plan(step)


def test_no_captured_row_is_longer_than_its_rotations():
    sequences = Sequences(shaped(), [31, 18], 16, torch.float32)
    backend, spans = native(sequences), [(0, 30, 31), (1, 17, 18)]
    step = sequences.step(spans)
    with backend._kernels.capture(Arena()):
        backend.plan(step)
        turned = torch.ones(31, 16)
        q, k, v = sequences.inputs(spans)
        backend.rotate_and_attend(sequences.layer, q, k, v, step.positions, turned, step)
    backend.plan(step)
    step.context_lens[0] = 32
    with pytest.raises(ValueError, match=r"step\.context_lens .* 0\.\.30, .* 17\.\.31"):
        backend.plan(step)


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("rotated", [64, 32, 24])
@pytest.mark.parametrize("dtype", KV)
def test_rotation_and_store_equal_the_torch_ops_bit_for_bit(isa, rotated, dtype):
    layer = shaped(heads=4, kv_heads=2, head_dim=64)
    sequences = Sequences(layer, [70, 20], 16, dtype)
    spans = [(0, 0, 70), (1, 3, 20)]
    angles = torch.outer(torch.arange(float(LONGEST)), torch.rand(rotated // 2))
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    step = sequences.step(spans)
    ours, theirs = native(sequences, isa), native(sequences, isa)
    for backend in (ours, theirs):
        sequences.run(backend, [(1, 0, 3)])
    q, k, v = sequences.inputs(spans)
    step.attention = ours
    found = rotary_attend(layer, q, k, v, cos_sin, step)
    q2, k2, v2 = sequences.inputs(spans)
    step.attention = theirs
    wanted = RotaryAttend(rotary)(layer, q2, k2, v2, cos_sin, step)
    assert torch.equal(q, q2) and torch.equal(k, k2) and torch.equal(found, wanted)
    kept = theirs._memory.layers[0].flatten(0, 1)[step.slot_mapping]
    assert torch.equal(kept, quantize_kv(torch.stack((k2, v2), 1), dtype))
    ours_kept, theirs_kept = (backend._memory.layers[0] for backend in (ours, theirs))
    assert torch.equal(ours_kept.view(torch.uint8), theirs_kept.view(torch.uint8))


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("head_dim", [16, 80, 256])
def test_int8_is_stored_as_the_reference_stores_it_whatever_the_numbers(isa, head_dim):
    sequences = Sequences(shaped(2, 2, head_dim), [12], 4, torch.int8)
    k = sequences.qkv[0][:, 2:4]
    k[1], k[2, 0], k[3, 1], k[4] = 0.0, 1e-38, 3e38, k[4] * 1e-30
    k[5, 0, 3], k[6, 1, 5], k[7, 0, 0] = torch.nan, torch.inf, -torch.inf
    k[8, 1] = torch.arange(head_dim) % 128 + 0.5  # ties
    k[8, 1, 0] = 127.0
    backend, spans = native(sequences, isa), [(0, 0, 12)]
    sequences.run(backend, spans)
    kept = backend._memory.layers[0].flatten(0, 1)[sequences.step(spans).slot_mapping]
    assert torch.equal(
        kept[..., :head_dim], quantize_kv(k_v(sequences), torch.int8)[..., :head_dim]
    )
    found, wanted = (
        dequantize_kv(x, head_dim) for x in (kept, quantize_kv(k_v(sequences), torch.int8))
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert found[5:8].isnan().any(-1).sum() == 3


def k_v(sequences):
    heads, kv_heads = sequences.layer.heads, sequences.layer.kv_heads
    return sequences.qkv[0][:, heads:].unflatten(1, (2, kv_heads))


def test_int8_loses_at_most_half_a_step_and_attention_little():
    sequences = Sequences(shaped(head_dim=64), [500], 16, torch.int8)
    exact = Sequences(shaped(head_dim=64), [500], 16, torch.float32)
    x = k_v(exact)
    error = (dequantize_kv(quantize_kv(x, torch.int8), 64) - x).abs().amax(-1)
    assert (error <= x.abs().amax(-1) / 253.9).all()
    found = sequences.run(native(sequences), [(0, 0, 500)])
    wanted = exact.expected(0)
    assert (found - wanted).norm() < 0.01 * wanted.norm()
    assert torch.equal(
        quantize_kv(dequantize_kv(quantize_kv(x, torch.int8), 64), torch.int8),
        quantize_kv(x, torch.int8),
    )


def test_rotation_alone():
    kernels = KERNELS[USABLE[0]]
    turn = kernels.operation("rotary", "q" * 8)
    x = torch.randn(9, 5, 48)
    positions, angles = torch.randint(0, 30, (9,)), torch.randn(30, 24)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    wanted = x.clone()
    rotary(wanted, wanted[:, :0], positions, cos_sin)
    turn(9, x.data_ptr(), x.stride(0), 5, 48, positions.data_ptr(), cos_sin.data_ptr(), 48)
    assert torch.equal(x, wanted)


def test_great_scores_and_distant_tiles_do_not_overflow():
    layer = shaped(heads=2, kv_heads=1, head_dim=16, scale=1.0)
    sequences = Sequences(layer, [400], 16, torch.float32)
    sequences.qkv[0][:, :3] *= 20
    sequences.qkv[0][300:, 2] *= 30
    found = sequences.run(native(sequences), [(0, 0, 400)])
    torch.testing.assert_close(found.double(), sequences.expected(0), atol=2e-3, rtol=2e-3)


def test_what_the_kernels_do_not_do_is_said():
    assert unsupported([shaped(head_dim=64)], torch.bfloat16) is None
    assert "20" in (unsupported([shaped(head_dim=20)], torch.bfloat16) or "")
    assert "float16" in (unsupported([shaped()], torch.float16) or "")
    sequences = Sequences(shaped(), [3], 16, torch.float32)
    step = sequences.step([(0, 0, 3)])
    step.attention = ReferenceAttention([sequences.layer], sequences.memory(), torch.float32)
    with pytest.raises(TypeError, match="ReferenceAttention"):
        rotary_attend(sequences.layer, *sequences.inputs([(0, 0, 3)]), torch.ones(3, 16), step)
    with pytest.raises(ValueError, match=r"^attend: q .*float32"):
        q, k, v = sequences.inputs([(0, 0, 3)])
        native(sequences).attend(sequences.layer, q.double(), k, v, sequences.step([(0, 0, 3)]))
