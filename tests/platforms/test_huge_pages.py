"""Memory for weights: aligned, apart, and kept as long as a tensor in it."""

from __future__ import annotations

import gc
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from vivace.platforms.cpu.huge_pages import ALIGNMENT, PAGE, SEGMENT, HugePages, allocate_segment


def test_tensors_are_aligned_and_do_not_touch_each_other() -> None:
    memory = HugePages()
    sizes = [1, 63, 64, 65, 0, 4096, SEGMENT - 1, SEGMENT, SEGMENT + 1, 7]
    tensors = [memory.empty(size) for size in sizes]
    assert [len(tensor) for tensor in tensors] == sizes
    assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors if len(tensor))
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    for number, tensor in enumerate(tensors):
        assert bool((tensor == number).all())


def test_a_tensor_outlives_the_memory_it_came_from() -> None:
    memory = HugePages()
    tensor = memory.empty(1000).fill_(7)
    del memory
    gc.collect()
    assert int(tensor.sum()) == 7000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="huge pages are asked of Linux")
def test_a_segment_begins_with_a_page_and_takes_no_memory_before_it_is_written() -> None:
    before = resident()
    segment = allocate_segment(256 << 20)
    assert segment.dtype == np.uint8 and segment.ctypes.data % PAGE == 0
    assert len(segment) >= 256 << 20
    assert resident() - before < 64 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
