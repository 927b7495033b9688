"""What each rank takes of a checkpoint, in files of its own: the same logits from them, and no
file of another rank is opened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rank_toys
import torch
from draft_head_toys import RECURRENT
from embedding_toys import write_embedding_toy
from fp8_toys import make_fp8
from mxfp4_toys import make_mxfp4
from paged_model import ONCE
from quantized_toys import AWQ, GptqForm, StoredModel, awq, awq_meant, dynamic, dynamic_meant
from rank_toys import FAMILIES, SIZES
from safetensors.torch import load_file, save_file
from thread_ranks import ThreadRanks
from toy_models import make, tokens

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.pooling import PoolerConfig, read_pooling
from vivace.checkpoint.saved_state import (
    KEY,
    LENGTH,
    metadata,
    parse_part,
    part_name,
    read_saved_state,
)
from vivace.checkpoint.source import locate
from vivace.checkpoint.weight_files import PATTERN, check_pattern, fill
from vivace.checkpoint.weights import CheckpointError
from vivace.commands.save_sharded_state import main
from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.parsing import from_arguments
from vivace.launch.configure import configure
from vivace.offline.sharded_state import save_sharded_state

EXPERTS = {**rank_toys.EXPERTS, "num_experts": 4}
LATENT = FAMILIES["DeepseekV3"]
FUSED = FAMILIES["GptOss"]
IDS, CHUNKS = tokens(21), [9, 1, 11]


def stored(method: str, folder: Path) -> None:
    toy = StoredModel(folder, "Qwen2", **SIZES)
    if method == "awq":
        toy.store(awq, awq_meant, kind="")
        toy.save(quantization_config=AWQ)
    elif method == "gptq":
        form = GptqForm(4, 32, ordered=False, version=1)
        toy.store(form.stored, form.meant, kind="")
        toy.save(quantization_config=form.config())
    else:
        toy.store(dynamic, dynamic_meant, kind="W8A8_DYNAMIC")
        toy.save()
        toy.describe()


def fp8(folder: Path) -> None:
    sizes: dict[str, Any] = {
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
    }
    made, _ = make_fp8(folder.parent, "Llama", head_dim=64, num_attention_heads=8, **sizes)
    made.rename(folder)


MAKERS: dict[str, Callable[[Path], object]] = {
    "llama": lambda folder: make("Llama", folder, **SIZES),
    "tied": lambda folder: make("Llama", folder, **SIZES, tie_word_embeddings=True),
    "qwen3-moe": lambda folder: make("Qwen3Moe", folder, **SIZES, **EXPERTS),
    "qwen3-next": lambda folder: make("Qwen3Next", folder, **SIZES, **RECURRENT),
    "deepseek-v3": lambda folder: make("DeepseekV3", folder, **{**SIZES, **LATENT}),
    "gpt-oss": lambda folder: make("GptOss", folder, **SIZES, **FUSED),
    "mxfp4": lambda folder: make_mxfp4(folder, **SIZES, **FUSED),
    "awq": lambda folder: stored("awq", folder),
    "gptq": lambda folder: stored("gptq", folder),
    "modelslim": lambda folder: stored("modelslim", folder),
    "fp8": fp8,
}
LAYOUTS = [
    *((name, 2, 1, None) for name in MAKERS),
    ("llama", 1, 1, None),
    ("llama", 4, 1, None),
    ("llama", 2, 1, "w8a8_int8"),
    ("qwen3-moe", 2, 2, None),
    ("qwen3-moe", 4, 2, None),
    ("deepseek-v3", 4, 2, None),
    ("gpt-oss", 2, 2, None),
    ("mxfp4", 2, 2, None),
]


def settings(folder: Path, **flags: Any) -> Config:
    return configure(
        from_arguments(model_path=str(folder), skip_tokenizer_init=True, dtype="float32", **flags)
    )


def save(folder: Path, output: Path, *, max_size: int | None = None, **flags: Any) -> Path:
    def report(stage: str, fraction: float) -> None:
        assert 0 <= fraction <= 1

    save_sharded_state(settings(folder, **flags), output, max_size=max_size, report=report)
    return output


@pytest.mark.parametrize(("name", "tp", "ep", "quantization"), LAYOUTS)
def test_the_same_logits(
    name: str, tp: int, ep: int, quantization: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    MAKERS[name](folder)
    flags = {"tp_size": tp, "ep_size": ep, "quantization": quantization}
    saved = save(folder, tmp_path / "saved", max_size=1 << 18, **flags)
    how: dict[str, Any] = {"ep": ep, "quantization": quantization}
    wanted = ThreadRanks(folder, tp, **how).feed(IDS, CHUNKS)
    (folder / "model.safetensors").unlink(missing_ok=True)
    found = ThreadRanks(saved, tp, load_format="sharded_state", **how).feed(IDS, CHUNKS)
    assert torch.equal(found, wanted)
    settings(saved, load_format="sharded_state", **flags)


def test_how_a_model_of_embeddings_pools_is_saved_too(tmp_path: Path) -> None:
    write_embedding_toy(tmp_path / "model", "mean", normalize=False)
    flags: dict[str, Any] = {"tp_size": 2, "is_embedding": True}
    saved = save(tmp_path / "model", tmp_path / "saved", **flags)
    found = settings(saved, load_format="sharded_state", **flags)
    assert read_pooling(found.source, 96) == PoolerConfig(mode="mean", normalize=False)


@ONCE
def test_a_rank_opens_its_own_files_only(tmp_path: Path) -> None:
    """Also of pipeline stages and attention groups: files are of ranks, whatever these are."""
    make("Qwen3Moe", tmp_path / "model", **SIZES, **EXPERTS)
    flags = {"tp_size": 4, "dp_size": 2, "enable_dp_attention": True, "ep_size": 2}
    saved = save(tmp_path / "model", tmp_path / "saved", **flags)
    sizes = [
        sum(tensor.nbytes for tensor in load_file(saved / fill(PATTERN, rank, 0)).values())
        for rank in range(4)
    ]
    whole = sum(one.nbytes for one in load_file(tmp_path / "model/model.safetensors").values())
    assert max(sizes) < whole * 0.6
    settings(saved, load_format="sharded_state", **flags)
    for rank in (1, 2, 3):
        (saved / fill(PATTERN, rank, 0)).unlink()
    with pytest.raises(ConfigError, match="missing"):
        settings(saved, load_format="sharded_state", **flags)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    make("Llama", folder / "model", **SIZES)
    return save(folder / "model", folder / "saved", tp_size=2, max_size=1 << 16)


@ONCE
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"tp_size": 4}, "missing"),
        ({"tp_size": 1}, "--tp-size 2 .here 1."),
        ({"tp_size": 2, "quantization": "w8a16"}, "--quantization not given .here w8a16."),
        ({"tp_size": 2, "is_embedding": True}, "--is-embedding"),
        ({"tp_size": 2, "json_model_override_args": {"num_hidden_layers": 1}}, "layers 2"),
        ({"tp_size": 2, "model_impl": "transformers"}, "transformers"),
        ({"tp_size": 2, "model_loader_extra_config": {"size": 1}}, "pattern"),
        ({"tp_size": 2, "model_loader_extra_config": {"pattern": "../x"}}, "pattern"),
        ({"tp_size": 2, "model_loader_extra_config": {"pattern": 3}}, "pattern"),
    ],
)
def test_what_differs_is_named_before_loading(
    flags: dict[str, Any], named: str, pair: Path
) -> None:
    with pytest.raises((ConfigError, SourceError), match=named):
        settings(pair, load_format="sharded_state", **flags)


@ONCE
def test_where_whole_experts_were_saved_they_are_expected(tmp_path: Path) -> None:
    """With an all-to-all each rank has the shared expert whole, and ep says nothing of it."""
    make("DeepseekV3", tmp_path / "model", **{**SIZES, **LATENT})
    flags: dict[str, Any] = {"tp_size": 2, "ep_size": 2}
    saved = save(tmp_path / "model", tmp_path / "saved", **flags)
    settings(saved, load_format="sharded_state", **flags)
    with pytest.raises(ConfigError, match="--moe-a2a-backend"):
        settings(saved, load_format="sharded_state", moe_a2a_backend="deepep", **flags)


@ONCE
def test_files_of_ranks_are_not_a_model(pair: Path) -> None:
    with pytest.raises(SourceError, match="sharded_state"):
        locate(str(pair))


@ONCE
def test_a_part_that_is_missing(pair: Path, tmp_path: Path) -> None:
    for file in pair.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    last = max(
        tmp_path.glob("model-rank-1-part-*"),
        key=lambda file: int(file.stem.rpartition("-")[2]),
    )
    last.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        ThreadRanks(tmp_path, 2, load_format="sharded_state")
    (tmp_path / fill(PATTERN, 1, 0)).unlink()
    with pytest.raises(SourceError, match="part-0"):
        settings(tmp_path, load_format="sharded_state", tp_size=2)


@ONCE
def test_files_of_others_and_damaged_ones(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((pair / "config.json").read_text())
    first = tmp_path / fill(PATTERN, 0, 0)
    save_file({"model.norm.weight": torch.ones(4)}, first)
    with pytest.raises(SourceError, match="say"):
        read_saved_state(first)
    first.write_bytes(b"\xff" * 40)
    with pytest.raises(SourceError, match="damaged"):
        read_saved_state(first)
    state = read_saved_state(pair / fill(PATTERN, 1, 0))
    save_file({"a[0:4/8]": torch.ones(4)}, first, metadata(state))
    with pytest.raises(ConfigError, match="missing"):
        settings(tmp_path, load_format="sharded_state", tp_size=2)
    save_file({"a[0:4/8,x]": torch.ones(4)}, first, metadata(state))
    with pytest.raises(CheckpointError, match="part"):
        ThreadRanks(tmp_path, 1, load_format="sharded_state")
    save_file({"a[0:3/8]": torch.ones(4)}, first, metadata(state))
    with pytest.raises(CheckpointError, match="shape"):
        ThreadRanks(tmp_path, 1, load_format="sharded_state")


@ONCE
@pytest.mark.parametrize("text", ["\ud800", '{"x":' + "[" * 100_000], ids=["half", "deep"])
def test_what_a_file_says_of_itself_may_be_anything(tmp_path: Path, text: str) -> None:
    header = json.dumps({"__metadata__": {KEY: text}}).encode()
    file = tmp_path / fill(PATTERN, 0, 0)
    file.write_bytes(LENGTH.pack(len(header)) + header)
    with pytest.raises(SourceError, match="again"):
        read_saved_state(file)


@ONCE
def test_a_pipe_is_no_file_of_a_rank(tmp_path: Path) -> None:
    """To open one waits for a writer, for ever."""
    file = tmp_path / fill(PATTERN, 0, 0)
    os.mkfifo(file)
    with pytest.raises(SourceError, match="regular"):
        read_saved_state(file)


@ONCE
def test_where_nothing_is_saved(pair: Path, tmp_path: Path) -> None:
    model = pair.parent / "model"
    for output, named in ((model, "itself"), (pair, "already"), (model / "config.json", "exists")):
        with pytest.raises(SourceError, match=named):
            save(model, output, tp_size=2)
    with pytest.raises(SourceError, match="safetensors"):
        save_sharded_state(
            configure(from_arguments()), tmp_path, report=lambda stage, fraction: None
        )


def test_another_model_is_not_written_over(pair: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    make("Qwen2", folder, **SIZES)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(SourceError, match="another"):
        save(pair.parent / "model", folder, tp_size=2)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@ONCE
@pytest.mark.parametrize("size", ["0", "-1"])
def test_files_have_at_least_one_byte(
    size: str, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "saved"
    where = ["--model-path", str(pair.parent / "model"), "--output", str(output)]
    with pytest.raises(SystemExit) as ended:
        main([*where, "--max-file-size", size])
    assert ended.value.code == 2 and "--max-file-size" in capsys.readouterr().err
    assert not output.exists()


@ONCE
def test_names_of_parts() -> None:
    for shape, ranges in (
        ((8, 4), (slice(0, 4), slice(None))),
        ((8,), (slice(2, 8),)),
        ((3, 8, 4), (slice(1, 2), slice(None), slice(0, 2))),
    ):
        name, found = parse_part(part_name("a.b", shape, ranges))
        assert name == "a.b"
        assert [slice(None) if one is None else slice(one[0], one[1]) for one in found] == [
            slice(None) if r == slice(None) else r for r in ranges
        ]
    assert part_name("a", (8, 4), (slice(0, 8), slice(None))) == "a"
    assert part_name("a", (), (slice(None),)) == "a"
    for bad in ("a[1:2]", f"a[{'0:1/2,' * 8}:]", "a[:,]"):
        with pytest.raises(ValueError, match="a"):
            parse_part(bad)
    for bad in ("x", "a/{rank}{part}.safetensors", "{rank}.safetensors"):
        with pytest.raises(SourceError, match="pattern"):
            check_pattern(bad)
