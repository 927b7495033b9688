"""Files of single ranks where each machine has those of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from rank_toys import SIZES
from safetensors.torch import load_file, save_file
from toy_models import make

from vivace.checkpoint.weight_files import PATTERN, fill
from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.parsing import from_arguments
from vivace.launch.configure import configure
from vivace.launch.node_hello import differences, hello
from vivace.offline.sharded_state import save_sharded_state

NODES: dict[str, Any] = {"tp_size": 2, "nnodes": 2, "dist_init_addr": "127.0.0.2:5000"}


def settings(folder: Path, **flags: Any) -> Config:
    return configure(
        from_arguments(model_path=str(folder), skip_tokenizer_init=True, dtype="float32", **flags)
    )


def save(folder: Path, factor: float) -> Path:
    make("Llama", folder / "model", **SIZES)
    file = folder / "model/model.safetensors"
    save_file({name: factor * tensor for name, tensor in load_file(file).items()}, file)
    config = settings(folder / "model", tp_size=2)
    save_sharded_state(config, folder / "saved", report=lambda stage, fraction: None)
    return folder / "saved"


def only(saved: Path, rank: int, output: Path) -> Path:
    """What the machine of a rank needs of `saved`."""
    shutil.copytree(saved, output)
    (output / fill(PATTERN, 1 - rank, 0)).unlink()
    return output


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [save(tmp_path_factory.mktemp("saved"), factor) for factor in (1, 2)]


def on_node(folder: Path, rank: int) -> Config:
    return settings(folder, load_format="sharded_state", node_rank=rank, **NODES)


def test_a_node_has_the_files_of_its_ranks(saved: list[Path], tmp_path: Path) -> None:
    nodes = [on_node(only(saved[0], rank, tmp_path / f"{rank}"), rank) for rank in (0, 1)]
    assert differences(1, hello(nodes[1]), hello(nodes[0])) == []
    with pytest.raises(ConfigError, match="rank-0") as raised:
        on_node(tmp_path / "1", 0)
    assert "copy it here" in str(raised.value)


def test_what_nobody_typed_is_not_named(saved: list[Path]) -> None:
    """A model without experts has no layers that --moe-dense-tp-size is about."""
    with pytest.raises(ConfigError, match="--tp-size") as raised:
        settings(saved[0], load_format="sharded_state", tp_size=1)
    assert "dense" not in str(raised.value)


def test_files_that_were_made_of_another_model_are_refused(
    saved: list[Path], tmp_path: Path
) -> None:
    nodes = [on_node(only(saved[rank], rank, tmp_path / f"{rank}"), rank) for rank in (0, 1)]
    (line,) = differences(1, hello(nodes[1]), hello(nodes[0]))
    assert "saved model" in line
    shutil.copy(saved[0] / fill(PATTERN, 0, 0), tmp_path / "1")
    with pytest.raises(ConfigError, match="several"):
        settings(tmp_path / "1", load_format="sharded_state", tp_size=2)
