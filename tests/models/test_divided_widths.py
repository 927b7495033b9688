"""Which numbers of devices divide a model: of each family and of shapes that they divide and do
not, every number either runs with the logits of one rank, or is refused before loading with those
that are possible."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_toys import write
from mxfp4_toys import make_mxfp4
from rank_toys import CLASSES, FAMILIES
from thread_ranks import ThreadRanks
from toy_models import make, tokens

from vivace.commands.check import main as check
from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.errors import CannotStart
from vivace.launch.configure import configure

IDS, CHUNKS = tokens(9), [6, 1, 2]
NUMBERS = (2, 3, 4, 8)
Shape = dict[str, Any]
SHAPES: dict[str, Shape] = {
    "threes": {"num_attention_heads": 6, "num_key_value_heads": 3, "width": 48},
    "eights": {"num_attention_heads": 8, "num_key_value_heads": 2, "width": 112},
    "odd": {"num_attention_heads": 8, "num_key_value_heads": 8, "width": 100},
}
WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
          "intermediate_size_mlp")  # fmt: skip


def settings(family: str, shape: Shape) -> dict[str, Any]:
    """Of a toy of one layer, or of two where the first has no experts."""
    found: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 48, "head_dim": 16, "num_hidden_layers": 2,
        **FAMILIES[family], **shape,
    }  # fmt: skip
    width = found.pop("width")
    found |= {key: width for key in WIDTHS if key in found or key == "intermediate_size"}
    if "kv_lora_rank" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]
    if family == "InternLM2":  # its heads have no size of their own
        found["hidden_size"] = 16 * found["num_attention_heads"]
    return found


def verdict(path: Path, size: int, *more: str) -> str:
    """ "" where a server would start with so many devices; else the line that refuses."""
    flags = ["--model-path", str(path), "--skip-tokenizer-init", "--tp-size", str(size), *more]
    try:
        configure(parse(flags, {}))
    except ConfigError as error:
        return str(error)
    return ""


def check_number(path: Path, size: int, alone: Callable[[], torch.Tensor]) -> bool:
    """Whether it runs."""
    refusal = verdict(path, size)
    if refusal:
        possible = refusal.partition(" divided among ")[2] or refusal.partition("possible are ")[2]
        assert "1" in re.findall(r"\d+", possible), refusal
        assert str(size) not in re.findall(r"\d+", possible), refusal
        return False
    found = ThreadRanks(path, size).feed(IDS, CHUNKS)
    wanted = alone()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=2e-3 * float(wanted.abs().max()))
    return True


@pytest.mark.parametrize("operations", ["kernels"], indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_devices_runs_or_is_refused(
    family: str, shape: str, operations: None, tmp_path: Path
) -> None:
    made = settings(family, SHAPES[shape])
    make(CLASSES.get(family, family), tmp_path, **made)
    wanted = ThreadRanks(tmp_path, 1).feed(IDS, CHUNKS)
    ran = {size for size in NUMBERS if check_number(tmp_path, size, lambda: wanted)}
    latent = "kv_lora_rank" in made
    expected = {"threes": {3, 2} if latent else {3}, "eights": {2, 4, 8}, "odd": {2}}[shape]
    assert ran == expected


MIXTURE = {
    "vocab_size": 97, "hidden_size": 64, "head_dim": 32, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
FIVE_BLOCKS = {"moe_intermediate_size": 160, "num_experts": 4, "num_experts_per_tok": 2}


def mxfp4(folder: Path) -> Path:
    make_mxfp4(folder, **MIXTURE, intermediate_size=160, num_local_experts=4)
    return folder


def gpt_oss_floats(folder: Path) -> Path:
    make("GptOss", folder, **MIXTURE, intermediate_size=160, num_local_experts=4)
    return folder


def gguf(family: str, architecture: str, kind: Kind, **more: Any) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        model = make(family, folder, **MIXTURE | more)
        (folder / "gguf").mkdir()
        write(model, folder / "gguf" / "toy.gguf", architecture, kind)
        return folder / "gguf" / "toy.gguf"

    return made


BLOCKS: dict[str, tuple[Callable[[Path], Path], set[int]]] = {
    "gpt-oss in MXFP4": (mxfp4, {2, 4}),
    "gpt-oss in floats": (gpt_oss_floats, {2, 4, 8}),
    "gpt-oss in a GGUF file": (
        gguf("GptOss", "gpt-oss", Kind.MXFP4, intermediate_size=160, num_local_experts=4), {2, 4}),
    "Qwen3-MoE in a GGUF file": (gguf("Qwen3Moe", "qwen3moe", Kind.Q8_0, **FIVE_BLOCKS), {2, 4}),
    "experts of six blocks": (gguf(
        "Qwen3Moe", "qwen3moe", Kind.Q4_0, **FIVE_BLOCKS | {
            "moe_intermediate_size": 192, "num_attention_heads": 12, "num_key_value_heads": 6}),
        {2, 3}),
    "Llama in a GGUF file": (gguf("Llama", "llama", Kind.Q8_0, intermediate_size=128), {2, 4}),
    "Llama whose blocks two would cut": (
        gguf("Llama", "llama", Kind.Q8_0, intermediate_size=160), set()),
}  # fmt: skip


@pytest.mark.parametrize("operations", ["kernels"], indirect=True)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_stay_whole(name: str, operations: None, tmp_path: Path) -> None:
    """Experts are divided in whole blocks, of which some ranks have one more; each rank reads its
    own, and no two the same."""
    made, expected = BLOCKS[name]
    path = made(tmp_path)
    alone = ThreadRanks(path, 1)
    wanted = alone.feed(IDS, CHUNKS)
    assert {size for size in NUMBERS if check_number(path, size, lambda: wanted)} == expected
    for size in expected:
        read = ThreadRanks(path, size).read
        assert max(read) < alone.read[0] * (1.3 / size + 0.16), read
        assert sum(read) >= alone.read[0]


@pytest.mark.parametrize("operations", ["kernels"], indirect=True)
def test_blocks_that_are_decoded_may_be_cut(operations: None, tmp_path: Path) -> None:
    path = gguf("Llama", "llama", Kind.Q8_0, intermediate_size=160)(tmp_path)
    assert verdict(path, 2) and not verdict(path, 2, "--disable-cpu-kernels")
    assert not verdict(path, 2, "--quantization", "w8a16")


@pytest.mark.parametrize("operations", ["kernels"], indirect=True)
def test_blocks_of_experts_that_are_decoded_are_cut(operations: None, tmp_path: Path) -> None:
    """Three blocks and four ranks."""
    shape = {"moe_intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4}
    path = gguf("Qwen3Moe", "qwen3moe", Kind.Q8_0, **FIVE_BLOCKS | shape)(tmp_path)
    assert verdict(path, 4) and not verdict(path, 4, "--quantization", "w8a16")
    wanted = ThreadRanks(path, 1, quantization="w8a16").feed(IDS, CHUNKS)
    found = ThreadRanks(path, 4, quantization="w8a16").feed(IDS, CHUNKS)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=2e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("operations", ["kernels"], indirect=True)
def test_sums_in_one_order_have_the_same_blocks_on_every_rank(
    operations: None, tmp_path: Path
) -> None:
    path, fixed = mxfp4(tmp_path), "--enable-deterministic-inference"
    assert not verdict(path, 2) and "--tp-size 2" in verdict(path, 2, fixed)


def test_check_says_what_the_server_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gguf("Llama", "llama", Kind.Q8_0, intermediate_size=160)(tmp_path)
    command = ["--", "vivace", "serve", "--model-path", str(path), "--tp-size"]
    assert check([*command, "2"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert verdict(path, 2).removeprefix("--tp-size 2: ")[:60] in said
    assert check([*command, "1"]) == 0


def test_a_rank_without_a_block_is_refused_by_layers_too(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="5 blocks"):
        ThreadRanks(mxfp4(tmp_path), 8)
