"""Mixtures of experts by the kernels: against the references, in float64, and bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from every_isa import FLOATS as USABLE
from every_isa import load_kernels, needs_kernels, opened
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_int8_activations import random_blocks

from vivace.platforms.blocks import INT8_ACTIVATION_KINDS
from vivace.platforms.cpu.native import Arena, Kernels
from vivace.platforms.cpu.native_linear import NativeLinears
from vivace.platforms.cpu.native_moe import NativeMoe
from vivace.platforms.cpu.native_table import native_ops
from vivace.platforms.errors import CaptureError
from vivace.platforms.ops import moe
from vivace.platforms.ops.linear import quantize_static
from vivace.platforms.ops.moe import ExpertSlots, Gate
from vivace.platforms.ops.stored import StoredBlocks, int8_rows

KERNELS = {isa: load_kernels(isa) for isa in USABLE}
pytestmark = needs_kernels


def native(isa=None, threads=None):
    kernels = KERNELS[isa or USABLE[0]] if threads is None else opened(threads, isa)
    assert isinstance(kernels, Kernels)
    return NativeMoe(kernels, NativeLinears(kernels))


@st.composite
def gates(draw):
    groups, size = draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(1, 20))
    top_groups = draw(st.integers(1, groups))
    gate = Gate(
        top=draw(st.integers(1, min(8, top_groups * size))),
        scoring=draw(st.sampled_from(["softmax", "sigmoid"])),
        renormalize=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        groups=groups,
        top_groups=top_groups,
    )
    return gate, groups * size


@settings(max_examples=60, deadline=None)
@given(gates(), st.integers(1, 9), st.booleans(), st.sampled_from(USABLE or [""]))
def test_the_gate_chooses_and_weighs_as_the_reference(made, rows, biased, isa):
    gate, experts = made
    torch.manual_seed(rows)
    logits = torch.randn(rows, experts + 3)[:, :experts]
    bias = torch.randn(experts) if biased else None
    weights, chosen = native(isa).gate(gate, logits, bias)
    expected, wanted = moe.moe_gate(gate, logits.double().float(), bias)
    assert torch.equal(chosen, wanted)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-7)


def test_equal_logits_take_the_first_experts_and_a_nan_stays_in_its_row():
    logits = torch.zeros(3, 8)
    logits[1, 4] = torch.nan
    weights, chosen = native().gate(Gate(top=3, renormalize=True), logits)
    assert chosen[0].tolist() == chosen[2].tolist() == [0, 1, 2]
    torch.testing.assert_close(weights[0::2], torch.full((2, 3), 1 / 3))
    assert weights[1].isnan().all() and len(set(chosen[1].tolist())) == 3
    assert ((chosen >= 0) & (chosen < 8)).all()


def test_routes_spread_and_combine_equal_the_reference():
    experts = torch.stack([torch.randperm(7)[:3] for _ in range(11)])
    ops = native()
    routes, wanted = ops.routes(experts, 7), moe.moe_routes(experts, 7)
    assert torch.equal(routes.places, wanted.places) and torch.equal(routes.starts, wanted.starts)
    x, weights = torch.randn(11, 40), torch.rand(11, 3)
    spread = ops.permute(x[:, :21], routes)
    assert torch.equal(spread, moe.moe_permute(x[:, :21], wanted))
    expected = moe.moe_combine(spread.double(), weights, wanted).float()
    torch.testing.assert_close(ops.combine(spread, weights, routes), expected)
    weighed = ops.permute(x[:, :21], routes, weights)
    assert torch.equal(weighed, moe.moe_permute(x[:, :21], wanted, weights))
    torch.testing.assert_close(ops.combine(weighed, None, routes), expected)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(USABLE or [""]))
def test_pairs_of_other_ranks_go_nowhere(data, isa):
    """What three ranks make of their slots adds up to what one makes of all."""
    count, period, rows = 6, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    torch.manual_seed(rows)
    ops, x, weights = native(isa), torch.randn(rows, 20), torch.rand(rows, 3)
    chosen = torch.stack([torch.randperm(count)[:3] for _ in range(rows)])
    positions, table = torch.randint(0, 99, (rows,)), torch.randint(0, 9, (count, period))
    positions[data.draw(st.integers(0, 9)) :] = -1  # nobody's
    live = positions >= 0
    matrices = [torch.randn(16, 20) for _ in range(9)]
    whole = torch.zeros(rows, 16)
    for first in (0, 3, 6):
        counts = [torch.zeros(9, dtype=torch.int64) for _ in range(2)]
        slots = [ExpertSlots(table, first, own) for own in counts]
        placed, wanted = (
            place(chosen, positions, one)
            for place, one in zip((ops.place, moe.moe_place), slots, strict=True)
        )
        assert torch.equal(placed, wanted) and torch.equal(*counts)
        assert counts[0].sum() == chosen[live].numel()
        routes, same = ops.routes(placed, 3), moe.moe_routes(placed, 3)
        assert torch.equal(routes.places, same.places) and torch.equal(routes.starts, same.starts)
        own = [[one] for one in matrices[first : first + 3]]
        out = ops.linear(ops.permute(x, routes), ops.pack(own), routes)
        found = ops.combine(out, weights, routes)
        reference = moe.grouped_linear(moe.moe_permute(x, same), moe.pack_grouped(own), same)
        torch.testing.assert_close(found, moe.moe_combine(reference, weights, same))
        whole += found
    chosen_slots = moe.moe_place(chosen, positions, ExpertSlots(table, 0))
    each = torch.stack(matrices)[chosen_slots] @ x.view(rows, 1, 20, 1)
    wanted = (each[..., 0] * weights.unsqueeze(-1)).sum(1) * live.unsqueeze(1)
    torch.testing.assert_close(whole, wanted)


@pytest.mark.parametrize("gate", [torch.linspace(-40, 40, 11).unsqueeze(1), None])
def test_a_gated_sum_follows_the_definition(gate):
    y, x = torch.randn(11, 40), torch.randn(11, 53)[:, :40]
    wide = None if gate is None else gate.double()
    wanted = moe.add_gated(y.double(), x.double(), wide).float()
    found = native().add_gated(y, x, gate)
    assert found is y
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("rows", [0, 1, 3, 5])
def test_a_captured_mixture_is_replayed_with_fewer_tokens(rows):
    """Its calls have a row for each token, or one for each pair."""
    kernels = load_kernels(None, 1)
    ops = native_ops(kernels)
    logits, x = torch.randn(5, 7), torch.randn(5, 32)
    weight = ops.pack_grouped([[torch.randn(64, 32)] for _ in range(7)])

    def run(count):
        weights, chosen = ops.moe_gate(Gate(top=3), logits[:count])
        routes = ops.moe_routes(chosen, 7)
        inner = ops.silu_mul(ops.grouped_linear(ops.moe_permute(x[:count], routes), weight, routes))
        return ops.moe_combine(inner, weights, routes)

    with kernels.capture(Arena()) as graph:
        out = run(5)
    logits.copy_(torch.randn(5, 7))
    out.fill_(7.0)
    graph.run(rows)
    assert rows == 0 or torch.equal(out[:rows], run(rows))
    assert (out[rows:] == 7.0).all()


def test_calls_whose_rows_are_no_multiples_are_no_graph():
    kernels = load_kernels(None, 1)
    ops = native_ops(kernels)
    with pytest.raises(CaptureError), kernels.capture(Arena()):
        ops.scale(torch.ones(2, 4), 2.0)
        ops.scale(torch.ones(3, 4), 2.0)


def random_weights(kind, experts, outputs, inputs):
    """(packable, float64) of each expert"""
    made = [torch.randn(outputs, inputs) for _ in range(experts)]
    if kind in ("float32", "bfloat16"):
        kept = [w.to(getattr(torch, kind)) for w in made]
        return kept, [w.double() for w in kept]
    blocks = [
        StoredBlocks(kind, quantize(w.numpy(), GGMLQuantizationType[kind.upper()]), inputs)
        for w in made
    ]
    return blocks, [w.dequantize().double() for w in blocks]


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "q8_0", "q4_0", "mxfp4"])
@pytest.mark.parametrize("rows", [1, 5, 60])
def test_grouped_linear_follows_the_definition(isa, kind, rows):
    torch.manual_seed(rows)
    ops = native(isa)
    packable, wide = random_weights(kind, 5, 100, 96)
    weight = ops.pack([[w] for w in packable])
    experts = torch.stack([torch.randperm(4)[:2] for _ in range(rows)])  # nobody asks the fifth
    routes, x = ops.routes(experts, 5), torch.randn(rows, 96)
    found = ops.linear(ops.permute(x, routes), weight, routes)
    bias = torch.randn(5, 100)
    added = ops.linear(ops.permute(x, routes), weight, routes, bias)
    chosen = torch.empty(2 * rows, dtype=torch.int64)
    chosen[routes.places.flatten()] = experts.flatten()
    assert torch.equal(added, found + bias[chosen])
    for token, pair in enumerate(experts.tolist()):
        for j, expert in enumerate(pair):
            wanted = wide[expert] @ x[token].double()
            got = found[routes.places[token, j]]
            torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("isa", USABLE)
def test_a_token_does_not_depend_on_the_others_nor_on_threads(isa):
    x, gate = torch.randn(70, 64), Gate(top=2, renormalize=True)
    router, matrices = torch.randn(64, 6), [[torch.randn(80, 64)] for _ in range(6)]

    def block(ops, x):
        weight = ops.pack(matrices)
        weights, chosen = ops.gate(gate, x @ router)
        routes = ops.routes(chosen, 6)
        return ops.combine(ops.linear(ops.permute(x, routes), weight, routes), weights, routes)

    alone = torch.cat([block(native(isa), row[None]) for row in x[:9]])
    for threads in (1, 3):
        ops = native(isa, threads)
        logits = torch.cat([row[None] @ router for row in x])
        weights, chosen = ops.gate(gate, logits)
        routes, weight = ops.routes(chosen, 6), ops.pack(matrices)
        whole = ops.combine(ops.linear(ops.permute(x, routes), weight, routes), weights, routes)
        assert torch.equal(whole[:9], alone)


def test_a_captured_block_replays_with_fewer_tokens():
    kernels = KERNELS[USABLE[0]]
    ops, gate = native(), Gate(top=2, scoring="sigmoid")
    weight = ops.pack([[torch.randn(48, 32)] for _ in range(4)])
    x, logits = torch.randn(8, 32), torch.randn(8, 4)

    def block():
        weights, chosen = ops.gate(gate, logits)
        routes = ops.routes(chosen, 4)
        return ops.combine(ops.linear(ops.permute(x, routes), weight, routes), weights, routes)

    with kernels.capture(Arena()) as graph:
        out = block()
    for rows in (8, 3, 1, 8):
        x.normal_()
        logits.normal_()
        graph.run(rows)
        assert torch.equal(out[:rows], block()[:rows])


@pytest.mark.parametrize("isa", USABLE)
def test_each_expert_rounds_by_its_own_scale(isa):
    ops, chosen = native(isa), torch.stack([torch.randperm(4)[:2] for _ in range(19)])
    routes, x = ops.routes(chosen, 5), 4 * torch.randn(38, 37)
    scales, offsets = torch.rand(5) + 0.01, torch.randint(-9, 9, (5,)).float()
    found = ops.quantize(x, scales, offsets, routes)
    assert torch.equal(found, moe.quantize_experts(x, scales, offsets, routes))
    for expert in range(4):
        rows = slice(routes.starts[expert], routes.starts[expert + 1])
        scale, offset = float(scales[expert]), float(offsets[expert])
        assert torch.equal(found[rows], quantize_static(x[rows], scale, offset))


def test_experts_of_different_formats_are_refused():
    with pytest.raises(ValueError, match="format"):
        native().pack([[torch.randn(16, 32)], [torch.randn(16, 32).bfloat16()]])
    with pytest.raises(ValueError, match="format"):
        native().pack([[torch.randn(16, 32)], [torch.randn(32, 32)]])


def int8_weights(kind, experts, outputs, inputs):
    """Whose activations become int8 too"""
    if kind == "w8a8":
        made = [int8_rows(torch.randn(outputs, inputs)) for _ in range(experts)]
        return [rows.with_int8_activations() for rows in made]
    return [random_blocks(kind, outputs, inputs, seed) for seed in range(experts)]


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("kind", ["w8a8", *INT8_ACTIVATION_KINDS])
@pytest.mark.parametrize("rows", [1, 5, 90])
def test_grouped_int8_has_the_bits_of_ordinary_products(isa, kind, rows):
    """And is near its slow twin, which rounds activations the same way."""
    torch.manual_seed(rows)
    ops, linears = native(isa), NativeLinears(KERNELS[isa])
    matrices = int8_weights(kind, 5, 100, 256)
    experts = torch.stack([torch.randperm(4)[:2] for _ in range(rows)])  # nobody asks the fifth
    routes, x = ops.routes(experts, 5), torch.randn(rows, 256)
    spread, bias = ops.permute(x, routes), torch.randn(5, 100)
    found = ops.linear(spread, ops.pack([[one] for one in matrices]), routes, bias)
    for expert, matrix in enumerate(matrices[:4]):
        part = slice(routes.starts[expert], routes.starts[expert + 1])
        alone = linears.linear(spread[part], linears.pack([matrix]), bias[expert])
        assert torch.equal(found[part], alone)
    reference = moe.pack_grouped([[one] for one in matrices])
    wanted = moe.grouped_linear(spread, reference, routes, bias)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-3)


def test_a_captured_int8_mixture_is_replayed_with_fewer_tokens():
    kernels = load_kernels(None, 1)
    ops = native_ops(kernels)
    logits, x = torch.randn(6, 5), torch.randn(6, 64)
    weight = ops.pack_grouped([[one] for one in int8_weights("q4_1", 5, 40, 64)])

    def run(count):
        weights, chosen = ops.moe_gate(Gate(top=2), logits[:count])
        routes = ops.moe_routes(chosen, 5)
        found = ops.grouped_linear(ops.moe_permute(x[:count], routes), weight, routes)
        return ops.moe_combine(found, weights, routes)

    with kernels.capture(Arena()) as graph:
        out = run(6)
    for rows in (6, 1, 4):
        x.normal_()
        logits.normal_()
        graph.run(rows)
        assert torch.equal(out[:rows], run(rows))


def test_the_references_agree_with_plain_loops():
    logits = torch.tensor(np.random.default_rng(0).normal(size=(4, 12)), dtype=torch.float32)
    gate = Gate(top=3, scoring="sigmoid", groups=4, top_groups=2, renormalize=True, scale=2.0)
    bias = torch.linspace(-1, 1, 12)
    weights, chosen = moe.moe_gate(gate, logits, bias)
    for row in range(4):
        scores = [1 / (1 + np.exp(-float(x))) for x in logits[row]]
        choice = [s + float(b) for s, b in zip(scores, bias, strict=True)]
        groups = [sum(sorted(choice[3 * g : 3 * g + 3])[-2:]) for g in range(4)]
        kept = sorted(range(4), key=lambda g: -groups[g])[:2]
        allowed = [e for e in range(12) if e // 3 in kept]
        best = sorted(allowed, key=lambda e: -choice[e])[:3]
        assert chosen[row].tolist() == best
        total = sum(scores[e] for e in best)
        wanted = [2 * scores[e] / total for e in best]
        torch.testing.assert_close(weights[row], torch.tensor(wanted, dtype=torch.float32))
