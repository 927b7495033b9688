"""A process that starts again must not read other files than the first one did."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from checkpoint_files import write_gguf, write_sharded

from vivace.checkpoint.file_state import (
    SAMPLE_BYTES,
    SAMPLES,
    FileState,
    ModelFiles,
    read_file_state,
)
from vivace.checkpoint.source import locate


def rewrite(file: Path) -> None:
    """Other bytes, as many."""
    file.write_bytes(bytes(file.stat().st_size))


def replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes() + b"\0")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)


def keep_time(change: Callable[[Path], None], file: Path) -> None:
    """As `cp -p` over the file does, or a restore from a backup."""
    before = file.stat()
    change(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def exchange(file: Path) -> None:
    """Other bytes, as many, of the same time, in another file."""
    other = file.with_name("other")
    other.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    other.rename(file)


def change_the_end(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def pipe(file: Path) -> None:
    """What nobody writes to is not waited for."""
    file.unlink()
    os.mkfifo(file)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def turn(link: Path) -> None:
    """The hub's cache: a link that leads to another revision's file."""
    link.rename(link.with_name("old"))
    link.with_name("new").write_bytes(b"")
    link.symlink_to(link.with_name("new"))


CHANGES = [
    rewrite, replace, cut, turn, Path.touch, pipe, Path.unlink,
    partial(keep_time, rewrite), partial(keep_time, exchange), partial(keep_time, change_the_end),
]  # fmt: skip
GONE = (Path.unlink, pipe)


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
    assert f"{file} was {'removed' if change in GONE else 'changed'}" in told
    assert "Start the server again" in told and "\n" not in told


def test_what_no_process_reads_again_may_change(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    files = ModelFiles(locate(str(tmp_path)))
    (tmp_path / "README.md").write_text("new")
    (tmp_path / "config.json").write_text("{}")
    assert files.changed() == ""


@pytest.mark.parametrize("length", [0, 1, SAMPLE_BYTES, SAMPLES * SAMPLE_BYTES, 1 << 30])
def test_samples_are_few_and_hold_both_ends(tmp_path: Path, length: int) -> None:
    file = tmp_path / "weights"
    with file.open("wb") as sparse:
        sparse.truncate(length)
    seen = {read_file_state(file)}
    for place in {0, length // 3, length - 1} if 0 < length <= SAMPLES * SAMPLE_BYTES else ():
        seen.add(changed_at(file, place))
    if length > SAMPLES * SAMPLE_BYTES:
        seen |= {changed_at(file, 0), changed_at(file, length - 1)}
        assert changed_at(file, SAMPLE_BYTES) in seen  # between two samples: not noticed
    assert len(seen) == 1 + min(3, length) - (length > SAMPLES * SAMPLE_BYTES)


def changed_at(file: Path, place: int) -> FileState | None:
    """The state of the file with another byte there and the same time; the file stays."""
    before = file.stat()

    def put(byte: bytes) -> None:
        with file.open("r+b") as content:
            content.seek(place)
            content.write(byte)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    put(b"x")
    state = read_file_state(file)
    put(b"\0")
    return state
