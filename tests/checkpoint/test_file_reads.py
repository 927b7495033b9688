"""What a rank really touches of a checkpoint's files: the pages of them that its process has mapped
when its weights are loaded."""

from __future__ import annotations

import gc
import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_toys import write
from paged_model import load
from toy_models import make

from vivace.checkpoint.weights import TrackedWeights
from vivace.platforms.groups import SingleRank

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps")
WIDE = 1 << 17
"""numbers of a row that ranks divide: a share of it has several times what is mapped at once"""
AT_ONCE = 64 << 10
"""bytes that a fault maps"""
MAPPED = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ +(.*)$")


class Rank(SingleRank):
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def touched(file: Path) -> int:
    """Bytes of the file that this process has mapped and used, by all its maps of it."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if begin := MAPPED.match(line):
            ours = begin[1] == str(file)
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def read_by(
    path: Path, file: Path, rank: int, ranks: int, monkeypatch: pytest.MonkeyPatch, **how: Any
) -> int:
    """Bytes that one rank alone has read when its last tensor is taken."""
    seen: list[int] = []
    finish = TrackedWeights.finish

    def look(weights: TrackedWeights, claims: Any) -> None:
        seen.append(touched(file))
        finish(weights, claims)

    monkeypatch.setattr(TrackedWeights, "finish", look)
    gc.collect()
    assert touched(file) == 0, "of an earlier reader"
    load(path, group=Rank(rank, ranks), positions=8, **how)
    return seen[0]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the system maps small pieces of files: elsewhere it maps up to 2 MiB at once."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 256 << 20:
        pytest.skip("no /dev/shm with room")
    with TemporaryDirectory(dir=memory) as name:
        probe = Path(name) / "probe"
        probe.write_bytes(bytes(4 << 20))
        with probe.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            if view[2 << 20] or touched(probe) > AT_ONCE:
                pytest.skip("the system maps more of a file at once")
        yield Path(name)


def make_wide(folder: Path) -> Any:
    """A matrix of 8 MiB for each of an MLP's three; everything else is small."""
    return make(
        "Llama", folder, vocab_size=16, hidden_size=16, intermediate_size=WIDE, head_dim=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip


def make_experts(folder: Path) -> Any:
    return make(
        "Qwen3Moe", folder, vocab_size=16, hidden_size=16, moe_intermediate_size=WIDE // 2,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, num_experts=2,
        num_experts_per_tok=2, head_dim=16,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
@pytest.mark.parametrize(("made", "ep"), [(make_wide, 1), (make_experts, 1), (make_experts, 2)])
def test_a_rank_touches_its_own_part(
    made: Any, ep: int, form: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(folder)
    path, file = folder, folder / "model.safetensors"
    if form == "gguf":
        path = file = folder / "toy.gguf"
        write(model, file, "llama" if made is make_wide else "qwen3moe", Kind.F32)
    whole = file.stat().st_size
    assert read_by(path, file, 0, 1, monkeypatch) > whole * 0.98
    shares = [read_by(path, file, rank, 2, monkeypatch, ep=ep) for rank in range(2)]
    assert sum(shares) > whole * 0.98
    assert max(shares) < whole * 0.65, [one / whole for one in shares]
