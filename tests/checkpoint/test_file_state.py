"""A process that starts again must not read other files than the first one did."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_files import write_gguf, write_sharded

from vivace.checkpoint.file_state import ModelFiles
from vivace.checkpoint.source import locate


def rewrite(file: Path) -> None:
    """Other bytes, as many."""
    file.write_bytes(bytes(file.stat().st_size))


def replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes() + b"\0")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def turn(link: Path) -> None:
    """The hub's cache: a link that leads to another revision's file."""
    link.rename(link.with_name("old"))
    link.with_name("new").write_bytes(b"")
    link.symlink_to(link.with_name("new"))


CHANGES = [rewrite, replace, cut, turn, Path.unlink]


@pytest.fixture(params=["gguf", "second shard", "tokenizer"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ModelFiles, Path]:
    """The files of a model, and one of them."""
    if request.param == "gguf":
        file = write_gguf(tmp_path / "toy.gguf")
        model = file
    else:
        write_sharded(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{}")
        shard = "model-00002-of-00003.safetensors"
        file = tmp_path / ("tokenizer.json" if request.param == "tokenizer" else shard)
        model = tmp_path
    for one in tmp_path.iterdir():  # so that a change is one, however fast it follows
        os.utime(one, ns=(1, 1))
    return ModelFiles(locate(str(model))), file


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_file_is_told(
    model: tuple[ModelFiles, Path], change: Callable[[Path], None]
) -> None:
    files, file = model
    assert files.changed() == ""
    change(file)
    told = files.changed()
    assert f"{file} was {'removed' if change is Path.unlink else 'changed'}" in told
    assert "Start the server again" in told and "\n" not in told


def test_what_no_process_reads_again_may_change(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    files = ModelFiles(locate(str(tmp_path)))
    (tmp_path / "README.md").write_text("new")
    (tmp_path / "config.json").write_text("{}")
    assert files.changed() == ""
