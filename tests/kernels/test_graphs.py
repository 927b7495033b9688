"""Captured steps: lists of kernel calls over fixed buffers, and what refuses to be one."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest
import torch
from every_isa import each_isa, load_kernels, needs_kernels
from torch import Tensor

from vivace.errors import CannotStart
from vivace.platforms.cpu.allocator import keep_freed_blocks
from vivace.platforms.cpu.graphs import CpuGraphs
from vivace.platforms.cpu.library import StaleKernels
from vivace.platforms.cpu.native import ALIGNMENT, LARGE_RESULT, Arena, Kernels, NoKernels
from vivace.platforms.cpu.native_table import native_ops
from vivace.platforms.errors import CaptureError
from vivace.platforms.ops.table import Ops
from vivace.platforms.platform import StepShape

ROWS, WIDTH, VOCABULARY = 12, 96, 50
SHAPE = StepShape(ROWS, 1)


class Step:
    """A small network over fixed inputs: what a captured decode step is, without attention."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        torch.manual_seed(3)
        self.ids = torch.zeros(ROWS, dtype=torch.int64)
        self._table = ops.pack_embedding(torch.randn(VOCABULARY, WIDTH))
        self._up = ops.pack_linear([torch.randn(2 * WIDTH, WIDTH).bfloat16() * 0.1])
        self._down = ops.pack_linear([torch.randn(WIDTH, WIDTH) * 0.1])
        self._ones = torch.ones(WIDTH)

    def __call__(self, rows: int = ROWS) -> Tensor:
        ops, x = self.ops, self.ops.embedding(self.ids[:rows], self._table)
        normed = ops.rms_norm(x, self._ones, 1e-5)
        for _ in range(3):
            inner = ops.silu_mul(ops.linear(normed, self._up))
            normed, x = ops.add_rms_norm(ops.linear(inner, self._down), x, self._ones, 1e-5)
        return ops.scale(normed, 0.5)


@needs_kernels
@each_isa
def test_a_replay_equals_the_eager_step_bit_for_bit(isa):
    """With as many rows as captured and with fewer; rows that are not live are not computed."""
    kernels = load_kernels(isa)
    step = Step(native_ops(kernels))
    graph, result = CpuGraphs(kernels).capture(step, SHAPE)
    assert graph.calls == 2 + 3 * 4 + 1 and graph.nbytes > 0
    for rows in (ROWS, 1, 7, 2, ROWS):
        step.ids.copy_(torch.randint(0, VOCABULARY, (ROWS,)))
        result.fill_(-1.0)
        graph.run(rows)
        assert torch.equal(result[:rows], step(rows))
        assert (result[rows:] == -1.0).all()


@needs_kernels
def test_capturing_computes_nothing():
    kernels = load_kernels(None)
    step = Step(native_ops(kernels))
    graph, result = CpuGraphs(kernels).capture(step, SHAPE)
    assert (result == 0).all()
    graph.run(ROWS)
    assert torch.equal(result, step())


@needs_kernels
def test_buffers_are_used_again():
    """Within a capture, between captures of one recorder, and never one that is still needed."""
    kernels = load_kernels(None)
    step, graphs = Step(native_ops(kernels)), CpuGraphs(kernels)
    large, kept = graphs.capture(step, SHAPE)
    used = graphs.nbytes
    everything = 4 * ROWS * WIDTH * (2 + 3 * (2 + 1 + 1 + 1))
    assert 0 < used < everything
    small, other = graphs.capture(lambda: step(8), SHAPE)
    assert graphs.nbytes <= used + 4 * ROWS * 2 * WIDTH, "at most one buffer more"
    step.ids.copy_(torch.arange(ROWS))
    large.run(ROWS)
    expected = kept.clone()
    assert kept.data_ptr() != other.data_ptr()
    small.run(8)
    assert torch.equal(kept, expected), "a replay leaves the other's result alone"
    assert torch.equal(other, expected[:8])


def test_an_arena_grows_and_takes_back():
    arena = Arena()
    first = arena.empty((3, 5), torch.float32)
    second = arena.empty((3, 5), torch.float32)
    assert arena.nbytes == 2 * ALIGNMENT
    assert first.data_ptr() % ALIGNMENT == second.data_ptr() % ALIGNMENT == 0
    address = first.data_ptr()
    part = first[1:]
    del first
    third = arena.empty((3, 5), torch.float32)
    assert third.data_ptr() not in (address, second.data_ptr()), "a view keeps its buffer"
    del part
    gc.collect()
    assert arena.empty((16,), torch.float32).data_ptr() == address
    grown = arena.nbytes
    assert arena.empty((1000,), torch.int64).shape == (1000,)
    assert arena.nbytes == grown + 8000
    assert arena.empty((0, 7), torch.float32).shape == (0, 7)


def test_a_small_buffer_does_not_take_a_large_one():
    arena = Arena()
    large = arena.empty((10_000,), torch.float32)
    address = large.data_ptr()
    del large
    assert arena.empty((16,), torch.float32).data_ptr() != address
    assert arena.empty((6_000,), torch.float32).data_ptr() == address


@needs_kernels
def test_large_results_of_a_growing_batch_share_their_memory():
    keep_freed_blocks()  # as an engine does
    kernels, addresses, small = load_kernels(None), set(), []
    for rows in range(11, 28):
        logits = kernels.empty(rows, 49_152)
        assert logits.shape == (rows, 49_152)
        addresses.add(logits.data_ptr())
        del logits
        small += [torch.empty(count) for count in range(2_000, 2_400)]  # settle where it was
    assert len(addresses) == 2, "one block of up to 4 MiB, one of up to 8"


@needs_kernels
def test_trim_gives_back_what_is_kept_for_large_results():
    kernels = load_kernels(None)
    held, free = (kernels.empty(LARGE_RESULT, dtype=torch.uint8).fill_(7) for _ in range(2))
    del free
    kernels.trim()
    assert not kernels.empty(LARGE_RESULT, dtype=torch.uint8).any(), "new pages"
    assert (held == 7).all(), "a result that somebody holds stays"


@needs_kernels
@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda x: x + 1, "aten.add.Tensor"),
        (lambda x: x.clone(), "aten.clone"),
        (lambda x: x.index_select(0, torch.tensor([1])), "aten."),
        (lambda x: x[0, 0].item(), "aten._local_scalar_dense"),
        (lambda x: x.contiguous() if x.t().sum() else x, "aten.sum"),
        (lambda x: x.t().contiguous(), "aten.clone"),
        (lambda x: torch.empty(3), "aten.empty"),
    ],
)
def test_a_torch_operation_is_refused_by_name(compute, name):
    kernels = load_kernels(None)
    ops, x = native_ops(kernels), torch.randn(4, 32)
    ones = torch.ones(32)
    with pytest.raises(CaptureError, match=name) as caught:
        CpuGraphs(kernels).capture(lambda: compute(ops.rms_norm(x, ones, 1e-5)), SHAPE)
    assert "--disable-cuda-graph" in str(caught.value)


@needs_kernels
def test_views_are_no_operations():
    kernels = load_kernels(None)
    ops, x, ones = native_ops(kernels), torch.randn(4, 64), torch.ones(32)

    def run() -> Tensor:
        _, right = x.split([32, 32], -1)
        ops.scale(x, 2.0)
        added = ops.add_rms_norm(right.unflatten(-1, (4, 8)).flatten(1), left_copy, ones, 1e-5)
        return added[0].view(4, 4, 8)[1:].transpose(0, 1)

    left_copy = torch.zeros(4, 32)
    graph, result = CpuGraphs(kernels).capture(run, SHAPE)
    before = x.clone()
    graph.run(4)
    assert torch.equal(x, before * 2)
    normed = ops.rms_norm(x[:, 32:].contiguous(), ones, 1e-5)
    assert torch.equal(result, normed.view(4, 4, 8)[1:].transpose(0, 1))


@needs_kernels
def test_a_failed_capture_leaves_nothing_behind():
    """Operations run at once again, and the next capture has only its own calls."""
    kernels = load_kernels(None)
    step, graphs = Step(native_ops(kernels)), CpuGraphs(kernels)
    expected = step()
    with pytest.raises(CaptureError):
        graphs.capture(lambda: step() + 1, SHAPE)
    assert torch.equal(step(), expected)
    with pytest.raises(ZeroDivisionError):
        graphs.capture(lambda: step().expand(1 // 0), SHAPE)
    assert torch.equal(step(), expected)
    graph, result = graphs.capture(step, SHAPE)
    assert graph.calls == 15
    graph.run(ROWS)
    assert torch.equal(result, expected)


@needs_kernels
def test_one_capture_at_a_time():
    kernels = load_kernels(None)
    with (
        kernels.capture(Arena()),
        pytest.raises(RuntimeError, match="captured"),
        kernels.capture(Arena()),
    ):
        pass


@needs_kernels
def test_a_graph_keeps_what_it_calls():
    """The library stays open as long as something can be replayed by it."""
    kernels = Kernels(2)
    ones, x, scale = torch.ones(3, 8), torch.randn(3, 8), kernels.operation("scale", "qqqd")
    with kernels.capture(Arena()) as graph:
        scale(3, x.data_ptr(), 8, 2.0)
    expected = x * 2
    del kernels, scale
    gc.collect()
    others = [Kernels(2) for _ in range(3)]
    graph.run(3)
    assert torch.equal(x, expected) and len(others) == 3 and bool(ones.all())


@needs_kernels
def test_operations_check_their_words():
    kernels = load_kernels(None)
    with pytest.raises(StaleKernels, match=r"'divide'.* make kernels"):
        kernels.operation("divide", "qq")
    with pytest.raises(StaleKernels, match=r"scale: 3 .* 4.* make kernels"):
        kernels.operation("scale", "qqd")
    with pytest.raises(ValueError, match="9"):
        kernels.sequence(*[("scale", "qqqd")] * 9)


@needs_kernels
def test_an_instruction_set_that_is_not_there():
    with pytest.raises(NoKernels, match="'avx1024'"):
        Kernels(1, isa="avx1024")


def test_a_library_that_cannot_be_loaded(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF no more")
    with pytest.raises(NoKernels, match=r"broken\.so .*: "):
        Kernels(1, library=broken)
    assert issubclass(NoKernels, CannotStart), "a start ends in one line, without a traceback"


def test_a_library_of_something_else(tmp_path):
    """A file of an older version, say: no AttributeError of ctypes but what to do."""
    import _ctypes

    with pytest.raises(NoKernels, match="reinstall"):
        Kernels(1, library=type(tmp_path)(_ctypes.__file__))


@needs_kernels
def test_pinned_workers_stay_on_one_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: nothing to pin to")
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    kernels = Kernels(2, pinned=True)
    (worker,) = set(tasks.iterdir()) - before
    deadline = time.monotonic() + 5.0
    while (bound := os.sched_getaffinity(int(worker.name))) != {cores[1]}:
        assert time.monotonic() < deadline, bound
        time.sleep(0.01)
    assert os.sched_getaffinity(0) == set(cores)
    assert kernels.threads == 2
