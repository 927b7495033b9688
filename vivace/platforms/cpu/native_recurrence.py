"""Recurrent layers by the native kernels: the convolution, then the states, head by head.

A token's result does not depend on the other rows, on how its prompt was cut, nor on the number of
threads: see kernels/recurrent.inc.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from vivace.platforms.attention import (
    RecurrentInputs,
    RecurrentLayer,
    RecurrentWeights,
    Step,
)
from vivace.platforms.cpu.native import (
    I64,
    Kernels,
    below,
    block,
    matrix,
    require,
    sizes,
    spread_heads,
)
from vivace.platforms.ops.paged_cache import PagedCache

OP = "recur"


class NativeRecurrence:
    """`recur` over float32 activations."""

    def __init__(self, kernels: Kernels, memory: PagedCache) -> None:
        self._kernels, self._memory = kernels, memory
        self._convolve = kernels.operation("recurrent_conv", "q" * 23)
        self._advance = kernels.operation("recurrent_state", "q" * 22)

    def recur(
        self,
        layer: RecurrentLayer,
        inputs: RecurrentInputs,
        weights: RecurrentWeights,
        step: Step,
    ) -> Tensor:
        rows, *_ = sizes(OP, "q", inputs.q, 3)
        heads, group, width = layer.key_heads, layer.group, layer.group * layer.value_dim
        states, convs = self._memory.parts(layer.index)
        slots = self._locate_slots(step, rows, len(states))
        mixed = self._kernels.empty(rows, layer.channels)
        self._convolve(
            rows,
            *spread_heads(OP, "q", inputs.q, rows, heads, layer.key_dim),
            *spread_heads(OP, "k", inputs.k, rows, heads, layer.key_dim),
            *spread_heads(OP, "v", inputs.v, rows, heads, width),
            block(OP, "conv", weights.conv, layer.kernel, layer.channels),
            block(OP, "memory", convs, len(states), layer.kernel - 1, layer.channels),
            mixed.data_ptr(),
            heads,
            layer.key_dim,
            width,
            layer.kernel,
            *slots,
        )
        result = self._kernels.empty(rows, layer.value_heads, layer.value_dim)
        shape = (layer.value_heads, layer.key_dim, layer.value_dim)
        self._advance(
            rows,
            mixed.data_ptr(),
            *spread_heads(OP, "a", inputs.a, rows, heads, group),
            *spread_heads(OP, "b", inputs.b, rows, heads, group),
            block(OP, "decay", weights.decay, layer.value_heads),
            block(OP, "dt_bias", weights.dt_bias, layer.value_heads),
            block(OP, "memory", states, len(states), *shape),
            result.data_ptr(),
            heads,
            group,
            layer.key_dim,
            layer.value_dim,
            *slots,
        )
        return result

    def _locate_slots(self, step: Step, rows: int, count: int) -> tuple[int, ...]:
        """The words of `StateSlots`. What the buffers of a captured step will hold is made right by
        worker/state_slots.py."""
        require(OP, step.states is not None, "the step has no states")
        assert step.states is not None
        read, write, drafts = step.states.read, step.states.write, step.states.drafts
        decode = step.host.decode
        (spans,), (_, ahead) = (
            sizes(OP, "step.states.read", read, 1),
            sizes(OP, "step.states.write", write),
        )
        require(OP, spans == rows or not decode, f"{spans} spans of one token, {rows} tokens")
        require(OP, ahead > 0, "a span has no slot to write")
        lasting = drafts is None or not self._kernels.capturing  # the host makes them for each step
        require(OP, lasting, "a captured step has no drafts: capture steps of one token a row")
        starts = 0
        if not decode:
            starts = block(OP, "step.query_starts", step.query_starts, spans + 1, dtype=I64)
        words = (
            block(OP, "step.states.read", read, spans, dtype=I64),
            *matrix(OP, "step.states.write", write, ahead, spans, I64),
            0 if drafts is None else drafts.ctypes.data,
            starts,
            spans,
        )
        if not self._kernels.capturing:
            below(OP, "step.states.read", read.numpy(), count)
            below(OP, "step.states.write", write.numpy(), count)
            counts = check_spans(None if decode else step.query_starts.numpy(), rows)
            if drafts is not None:
                check_drafts(drafts, spans, ahead, counts)
        return words


def check_spans(starts: np.ndarray | None, rows: int) -> np.ndarray | int:
    """How many tokens each span has: they divide `rows`."""
    if starts is None:
        return 1
    counts = np.diff(starts)
    whole = starts[0] == 0 and starts[-1] == rows and np.min(counts, initial=0) >= 0
    require(OP, bool(whole), f"step.query_starts {starts} do not divide {rows} tokens")
    return counts


def check_drafts(drafts: np.ndarray, spans: int, ahead: int, counts: np.ndarray | int) -> None:
    right = drafts.dtype == np.int64 and drafts.shape == (spans,) and drafts.flags.c_contiguous
    require(OP, right, f"step.states.drafts must be {spans} int64")
    fits = np.all((drafts >= 0) & (drafts < ahead) & (drafts < np.maximum(counts, 1)))
    require(OP, bool(fits), f"step.states.drafts {drafts} of {counts} tokens, {ahead} slots")
