"""Several ranks that share models by tensors: `python tensor_ranks.py FOLDER RANKS`.

For every case of FOLDER/cases.json and each size of a group that divides RANKS, the ranks of the
first group compute the logits of a prompt in chunks; rank r writes CASE.tpN.r.safetensors there.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import paged_model
import torch
from paged_model import PagedModel, load
from safetensors.torch import save_file
from toy_models import tokens

from vivace.checkpoint.weights import TrackedWeights
from vivace.platforms.cpu.native import Kernels, NoKernels
from vivace.platforms.cpu.platform import NativePlatform
from vivace.platforms.groups import Group, TorchGroup, open_store
from vivace.platforms.platform import detect
from vivace.platforms.rendezvous import RankMemory, Rendezvous
from vivace.worker.tensor_memory import tensor_bytes

IDS = tokens(21)
CHUNKS = [9, 1, 11]


def compute(case: dict[str, Any], group: Group) -> dict[str, torch.Tensor]:
    read = []
    finish = TrackedWeights.finish

    def counted(self: TrackedWeights, claims: Any) -> None:
        read.append(self.read_bytes)
        finish(self, claims)

    TrackedWeights.finish = counted
    model = load(Path(case["path"]), quantization=case.get("quantization"), group=group)
    TrackedWeights.finish = finish
    return {
        "logits": PagedModel(model).feed("a", IDS, CHUNKS),
        "read": torch.tensor(read[0]),
        "held": torch.tensor(tensor_bytes(model)),
    }


def main() -> int:
    """The ranks are forked: torch is imported once."""
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    rest = {started for rank in range(1, ranks) if (started := forked(folder, rank, ranks))}
    compute_all(folder, 0, ranks)
    return max((os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in rest), key=abs)


def forked(folder: Path, rank: int, ranks: int) -> int:
    if pid := os.fork():
        return pid
    failed = 1
    try:
        compute_all(folder, rank, ranks)
        failed = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(failed)


def compute_all(folder: Path, rank: int, ranks: int) -> None:
    everybody = TorchGroup(open_store(f"{folder}/meeting", ranks), rank, ranks)
    native = None
    with suppress(NoKernels):
        native = NativePlatform(detect("cpu"), Kernels(1))
    for size in (n for n in range(1, ranks + 1) if ranks % n == 0):
        by_torch = everybody.divide([range(size)])
        if rank >= size:
            continue
        memory = os.open(folder / f"memory.{size}", os.O_RDWR | os.O_CREAT)
        shared = by_torch
        if native is not None and size > 1:
            place = Rendezvous(rank=rank, size=size, meeting="", memory=RankMemory(memory))
            shared = native.join(place)
        for case in json.loads((folder / "cases.json").read_text()):
            paged_model.PLATFORM = None if case["torch"] else native
            found = compute(case, by_torch if case["torch"] else shared)
            save_file(found, folder / f"{case['name']}.tp{size}.{rank}.safetensors")
    everybody.minimum([0])  # nobody ends before all are done


if __name__ == "__main__":
    sys.exit(main())
