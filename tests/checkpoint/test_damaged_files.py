"""Headers changed at random: a clean error or the right answer, never anything else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from checkpoint_files import write_gguf, write_single
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vivace.checkpoint.gguf_file import GGUFError, GGUFFile
from vivace.checkpoint.open import open_weights
from vivace.checkpoint.source import SourceError, locate
from vivace.checkpoint.weights import CheckpointError
from vivace.models.facts import read_facts

CLEAN = (SourceError, CheckpointError)
FEW = settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NUMBERS = st.sampled_from([0, 1, 2, 7, 8, 9, 255, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 64) - 1])


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "toy.gguf").read_bytes()


@pytest.fixture(scope="module")
def safetensors_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (write_single(tmp_path_factory.mktemp("st")) / "model.safetensors").read_bytes()


@st.composite
def damage(draw: st.DrawFn, header: int) -> list[tuple[int, bytes]]:
    """(offset, bytes to write there): single bytes or whole numbers, in the header."""
    pieces = st.one_of(
        st.binary(min_size=1, max_size=4),
        NUMBERS.map(lambda n: struct.pack("<Q", n)),
        NUMBERS.map(lambda n: struct.pack("<I", n & 0xFFFFFFFF)),
    )
    return draw(st.lists(st.tuples(st.integers(0, header), pieces), min_size=1, max_size=4))


def damaged(data: bytes, changes: list[tuple[int, bytes]], keep: int | None) -> bytes:
    changed = bytearray(data)
    for at, piece in changes:
        changed[at : at + len(piece)] = piece
    return bytes(changed[:keep])


def read_everything(path: Path) -> None:
    source = locate(str(path))
    facts = read_facts(source)
    weights = open_weights(source, facts, seed=0, progress=lambda stage, part: None)
    for name, shape in (("model.embed_tokens.weight", (40, 32)), ("model.norm.weight", (32,))):
        assert tuple(weights.take(name, shape).shape) == shape
    weights.finish({"model.embed_tokens.weight", "model.norm.weight"})


@FEW
@given(changes=damage(2600), keep=st.none() | st.integers(0, 12_000))
def test_gguf(
    changes: list[tuple[int, bytes]], keep: int | None, gguf_bytes: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "toy.gguf"
    file.write_bytes(damaged(gguf_bytes, changes, keep))
    with pytest.raises(CLEAN):  # at the latest `finish`: most tensors are never asked for
        read_everything(file)


@FEW
@given(changes=damage(3000), keep=st.none() | st.integers(0, 60_000))
def test_safetensors(
    changes: list[tuple[int, bytes]], keep: int | None, safetensors_bytes: bytes, tmp_path: Path
) -> None:
    write_single(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(damaged(safetensors_bytes, changes, keep))
    with pytest.raises(CLEAN):
        read_everything(tmp_path)


@given(data=st.binary(max_size=300))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "any.gguf"
    for prefix in (b"", b"GGUF", b"GGUF\x03\0\0\0", b"GGUF\x03\0\0\0" + struct.pack("<QQ", 0, 3)):
        file.write_bytes(prefix + data)
        try:
            GGUFFile(file)
        except GGUFError as error:
            assert str(file) in str(error)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    found = GGUFFile(write_gguf(tmp_path / "toy.gguf"))
    metadata = found.metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["a.flag"] is True
    assert (metadata["a.double"], metadata["a.small"], metadata["a.large"]) == (0.5, -3, 1 << 40)
    assert metadata["tokenizer.ggml.tokens"][39] == "<39>"
    assert metadata["tokenizer.ggml.scores"][:3] == [0.0, -1.0, -2.0]
    entry = found.tensors["token_embd.weight"]
    assert (entry.shape, entry.type.name, entry.nbytes) == ((40, 32), "Q8_0", 40 * 34)
    assert len(found.data("token_embd.weight")) == entry.nbytes


def header(tensors: int = 0, entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty: fetch it again"),
        (b"GGU", "not a GGUF file: it does not begin with 'GGUF'; fetch it again"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (b"tjgg" + bytes(40), "a GGML file of before August 2023; fetch"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer; fetch"),
        (b"\n<!doctype html><html>", "a web page; fetch"),
        (header(version=1), "version 1; versions 2 and 3 are read: convert"),
        (header(version=4), "version 4; versions 2 and 3 are read: give an older"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(tensors=1 << 60), "tensors and"),
        (header(entries=1) + struct.pack("<Q", 1 << 62), "a string of"),
        (header(entries=1) + text(b"\xff\xfe"), "not UTF-8"),
        (header(entries=1) + text(b"a") + struct.pack("<I", 99), "value type 99"),
        (header(entries=1) + text(b"a") + struct.pack("<IIQ", 9, 0, 1 << 50), "an array of"),
        (header(entries=1) + text(b"a") + struct.pack("<IIQ", 9, 8, 5) + bytes(8), "cut off"),
        (header(entries=2) + 2 * (text(b"a") + struct.pack("<II", 4, 1)), "occurs twice"),
        (header(tensors=1) + text(b"t") + struct.pack("<I", 9), "9 dimensions"),
        (
            header(tensors=1) + text(b"t") + struct.pack("<IQIQ", 1, 32, 999, 0),
            "unknown type 999: a newer quantization",
        ),
        (header(tensors=1) + text(b"t") + struct.pack("<IQIQ", 1, 33, 8, 0), "no multiple of 32"),
        (header(tensors=1) + text(b"t") + struct.pack("<IQIQ", 1, 0, 0, 0), "the shape"),
        (
            header(tensors=1) + text(b"t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0),
            "the shape",
        ),
        (header(tensors=1) + text(b"t") + struct.pack("<IQIQ", 1, 64, 0, 0), "truncated"),
        (header(tensors=1) + text(b"t") + struct.pack("<IQIQ", 1, 1, 0, 3) + bytes(99), "damaged"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.gguf"
    file.write_bytes(data)
    with pytest.raises(GGUFError, match=reason):
        GGUFFile(file)
