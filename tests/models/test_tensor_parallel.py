"""Layers that several ranks share, over gloo: the logits of one rank, each rank's own bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fp8_toys import make_fp8
from gguf import GGMLQuantizationType as Kind
from gguf_toys import write
from mxfp4_toys import make_mxfp4
from paged_model import PagedModel, load
from quantized_toys import (
    AWQ,
    GptqForm,
    StoredModel,
    awq,
    awq_meant,
    dynamic,
    dynamic_meant,
    static,
    static_meant,
)
from rank_toys import CLASSES, FAMILIES, SIZES
from safetensors.torch import load_file
from torch import Tensor
from toy_models import make, tokens

from vivace.errors import CannotStart
from vivace.layers.layout import split, split_or_repeat, split_unevenly
from vivace.models.registry import ARCHITECTURES
from vivace.platforms.groups import SingleRank

RANKS = 4
FP8: dict[str, Any] = {
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
}
"""four ranks have whole blocks"""
PROGRAM = Path(__file__).parents[1] / "kit" / "tensor_ranks.py"


def quantized_cases(folder: Path) -> list[dict[str, Any]]:
    gptq = GptqForm(4, 32, ordered=False, version=1)
    whole = GptqForm(4, -1, ordered=False, version=2)
    forms = {
        "awq": (awq, awq_meant, "", {"quantization_config": AWQ}),
        "gptq": (gptq.stored, gptq.meant, "", {"quantization_config": gptq.config()}),
        "gptq, one group": (whole.stored, whole.meant, "", {"quantization_config": whole.config()}),
        "modelslim static": (static, static_meant, "W8A8", {}),
        "modelslim dynamic": (dynamic, dynamic_meant, "W8A8_DYNAMIC", {}),
    }
    cases = []
    for name, (stored, meant, kind, config) in forms.items():
        toy = StoredModel(folder / name, "Qwen2", **SIZES)
        toy.store(stored, meant, kind=kind)
        toy.save(**config)
        if kind:
            toy.describe()
        cases.append({"name": name, "path": str(folder / name)})
    return cases


def write_cases(folder: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = []
    for family, more in FAMILIES.items():
        make(CLASSES.get(family, family), folder / family, **{**SIZES, **more})
        cases.append({"name": family, "path": str(folder / family)})
    path = str(folder / "Llama")
    make_mxfp4(folder / "mxfp4", **SIZES, **FAMILIES["GptOss"])
    cases.append({"name": "mxfp4", "path": str(folder / "mxfp4")})
    stored, _ = make_fp8(folder / "of fp8", "Llama", **FP8)
    cases.append({"name": "fp8", "path": str(stored)})
    cases.append({"name": "by torch", "path": path, "torch": True})
    cases.append({"name": "w8a16", "path": path, "quantization": "w8a16"})
    for kind in (Kind.Q4_0, Kind.Q8_0):
        model = make("Llama", folder / kind.name, **SIZES)
        write(model, folder / f"{kind.name}.gguf", "llama", kind)
        for by in ("", " by torch"):
            cases.append(
                {
                    "name": f"{kind.name}{by}",
                    "path": str(folder / f"{kind.name}.gguf"),
                    "torch": bool(by),
                }
            )
    return [{"torch": False, **case} for case in (*cases, *quantized_cases(folder))]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "cases.json").write_text(json.dumps(write_cases(folder)))
    done = subprocess.run(
        [sys.executable, PROGRAM, folder, str(RANKS)],
        env={**os.environ, "PYTHONSAFEPATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()[-4000:]
    return folder


def read(folder: Path, name: str, size: int) -> list[dict[str, Tensor]]:
    return [load_file(folder / f"{name}.tp{size}.{rank}.safetensors") for rank in range(size)]


NAMES = (
    *FAMILIES, "by torch", "w8a16", "Q4_0", "Q4_0 by torch", "Q8_0", "Q8_0 by torch", "awq", "gptq",
    "gptq, one group", "modelslim static", "modelslim dynamic", "mxfp4", "fp8",
)  # fmt: skip


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_the_logits_of_one_rank(name: str, size: int, computed: Path, operations: None) -> None:
    (alone,) = read(computed, name, 1)
    found = read(computed, name, size)
    for one in found:
        assert torch.equal(one["logits"], found[0]["logits"]), "every rank draws from the same"
    # Activations in int8 have a scale of each rank's own inputs.
    tolerance = 0.1 if name == "modelslim dynamic" else 2e-3
    wanted = alone["logits"]
    torch.testing.assert_close(
        found[0]["logits"], wanted, rtol=1e-3, atol=tolerance * float(wanted.abs().max())
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "w8a16"])
def test_a_rank_reads_and_holds_its_own_share(name: str, computed: Path, operations: None) -> None:
    """Besides norms and biases, which are small, and heads of keys that several have. Rows that
    become int8 here are read whole, so they are left out; kernels keep weights in large blocks of
    memory."""
    keys = ["read", *["held"] * ("by torch" in name)]
    (alone,) = read(computed, name, 1)
    for size in (2, 4):
        ranks = read(computed, name, size)
        for key in keys:
            each = [int(rank[key]) for rank in ranks]
            assert max(each) < int(alone[key]) * (1 / size + 0.16), (key, each)
            assert sum(each) >= int(alone[key])


def test_every_family_is_compared() -> None:
    assert {f"{name}ForCausalLM" for name in FAMILIES} == set(ARCHITECTURES)


class Rank(SingleRank):
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


class CountingRank(Rank):
    """Alone, as if the others had nothing to add."""

    sums = 0

    def sum(self, x: Tensor) -> Tensor:
        self.sums += 1
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        return torch.zeros(len(x), sum(widths))


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_add_twice_in_a_layer(family: str, tmp_path: Path) -> None:
    """What attention and what the MLP or the mixture gives, a shared expert with it; and once the
    embedding."""
    make(CLASSES.get(family, family), tmp_path, **{**SIZES, **FAMILIES[family]})
    group = CountingRank(0, 2)
    PagedModel(load(tmp_path, group=group)).feed("a", tokens(5), [5])
    assert group.sums == 1 + 2 * SIZES["num_hidden_layers"]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_shares_are_the_whole(size: int) -> None:
    ranks = [Rank(rank, size) for rank in range(size)]
    rows = list(range(16 * 8))
    assert [row for rank in ranks for row in rows[split("q", 128, 16, rank)]] == rows
    heads = [split_or_repeat("k", 32, 16, rank) for rank in ranks]
    assert [one.start for one in heads] == sorted(one.start for one in heads)
    assert {row for one in heads for row in range(*one.indices(32))} == set(range(32))
    assert sum(split_unevenly(97, ranks[0])) == 97
    assert max(split_unevenly(97, ranks[0])) - min(split_unevenly(97, ranks[0])) <= 1


def test_heads_that_do_not_go_into_the_ranks() -> None:
    with pytest.raises(CannotStart, match="1, 2, 3, 6"):
        split("model.layers.0.self_attn.q_proj", 96, 16, Rank(0, 4))
