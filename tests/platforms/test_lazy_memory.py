"""Buffers whose memory goes back to the system in parts."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vivace.errors import CannotStart
from vivace.platforms.attention import AttentionLayer, LatentLayer
from vivace.platforms.cpu.native_attention import PartialResults
from vivace.platforms.cpu.native_latent import LatentPartials
from vivace.platforms.memory import LazyMemory, zeroed_memory
from vivace.platforms.rendezvous import RankMemory
from vivace.protocol.shm_broadcast import BroadcastMemory
from vivace.system_calls import open_memory

MIB = 1 << 20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@linux
def test_memory_comes_with_the_first_touch_and_goes_back() -> None:
    before = resident_bytes()
    memory = zeroed_memory(256 * MIB, torch.device("cpu"))
    assert memory.lazy and resident_bytes() - before < 32 * MIB
    memory.tensor[: 128 * MIB] = 1
    assert resident_bytes() - before > 96 * MIB
    memory.give_back(64 * MIB, 256 * MIB)
    assert resident_bytes() - before < 96 * MIB
    assert bool((memory.tensor[: 64 * MIB] == 1).all()) and not memory.tensor[64 * MIB :].any()
    memory.tensor[-1] = 7
    assert memory.tensor[-1] == 7


@linux
@pytest.mark.parametrize("start", [0, 1, mmap.PAGESIZE - 1, mmap.PAGESIZE])
@pytest.mark.parametrize("length", [0, 1, mmap.PAGESIZE, 3 * mmap.PAGESIZE])
def test_nothing_outside_is_touched(start: int, length: int) -> None:
    memory = LazyMemory(5 * mmap.PAGESIZE)
    memory.tensor.fill_(1)
    memory.give_back(start, start + length)
    assert bool((memory.tensor[:start] == 1).all())
    assert bool((memory.tensor[start + length :] == 1).all())


def test_a_buffer_begins_with_a_system_page() -> None:
    for length in (10, 0):
        tensor = zeroed_memory(length, torch.device("cpu")).tensor
        assert tensor.data_ptr() % 64 == 0 and len(tensor) == length and not tensor.any()


@linux
def test_more_than_there_is_address_space_for() -> None:
    with pytest.raises(CannotStart, match="bytes"):
        LazyMemory(1 << 60)


@linux
def test_a_little_here_and_there_takes_little() -> None:
    before = resident_bytes()
    memory = zeroed_memory(256 * MIB, torch.device("cpu"), huge=False)
    memory.tensor[4 * MIB :: 4 * MIB] = 1
    assert resident_bytes() - before < 32 * MIB


@linux
def test_what_threads_share_of_attention_costs_nothing_before_it_is_used() -> None:
    """Of long contexts it may be 256 MiB each, in each rank."""
    layer = AttentionLayer(index=0, scale=1.0, heads=32, kv_heads=8, head_dim=128)
    latent = LatentLayer(index=0, scale=1.0, heads=128, latent_dim=512, rope_dim=64)
    before = resident_bytes()
    heads, latents = PartialResults([layer], 16, 1 << 17), LatentPartials([latent], 16, 1 << 17)
    assert resident_bytes() - before < 32 * MIB
    assert min(heads.words[2], latents.words[2]) > 0, "rows are shared"


def test_ranks_do_not_begin_with_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder in memory: who touched what it has no room for would be killed. All regions count
    but for what somebody has touched."""
    descriptor = open_memory("ranks")
    memory = RankMemory(descriptor)
    small = SimpleNamespace(f_blocks=16, f_bavail=16, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda _: small)
    region = memory.take(1 << 16)
    with pytest.raises(CannotStart, match="shm"):
        memory.take(1 << 14)
    region[:] = bytes(1 << 16)
    other = RankMemory(descriptor)
    assert [len(other.take(1 << shift)) for shift in (16, 14)] == [1 << 16, 1 << 14]

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for more in (lambda: other.take(1), lambda: BroadcastMemory(descriptor, 1)):
        with pytest.raises(CannotStart, match="shm"):
            more()
    os.close(descriptor)
