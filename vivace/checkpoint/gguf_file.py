"""Reading a GGUF file's header: metadata and where each tensor lies.

Free of torch and numpy, and untrusting: every count, length and offset is checked against the file
before it is used. Format: ggml's gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from vivace.checkpoint.fields import abbreviate
from vivace.checkpoint.gguf_types import GGML_QUANT_SIZES, GGMLQuantizationType
from vivace.checkpoint.json_files import FETCH_LFS, LFS_POINTER
from vivace.errors import CannotStart

MAGIC = b"GGUF"
GGML_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
"""files of llama.cpp from before August 2023"""
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 20
MAX_STRING = 16 << 20
MAX_HEADER = 256 << 20
"""bytes of metadata and list of tensors"""
MAX_ELEMENTS = 1 << 23
"""of all arrays together; the largest vocabularies have 2 ** 18 tokens and 2 ** 19 merges"""
MAX_NAME = 200
MAX_DIMENSIONS = 4
MAX_NESTING = 2
DEFAULT_ALIGNMENT = 32

SCALARS: dict[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
STRING, ARRAY = 8, 9


class GGUFError(CannotStart):
    """The file is not a GGUF file we can read; the text says what is wrong and where."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the file. `shape` is row-major (outermost first); `offset` is from byte 0."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


class GGUFFile:
    """A mapped GGUF file. Raises GGUFError when anything in the header is out of bounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = self._open(path)
        try:
            reader = _Reader(self._map, path)
            tensor_count, metadata_count = reader.preamble()
            self.metadata = reader.metadata(metadata_count)
            entries = reader.tensor_entries(tensor_count)
            self.tensors = reader.check_offsets(entries, self._alignment())
        except GGUFError:
            self._map.close()
            raise

    @staticmethod
    def _open(path: Path) -> mmap.mmap:
        try:
            with path.open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    raise GGUFError(f"{path}: the file is empty: fetch it again")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise GGUFError(f"{path}: cannot be opened as a GGUF file: {error}") from None

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value < 1 or value > 1 << 20 or value & (value - 1):
            raise GGUFError(
                f"{self.path}: general.alignment is {abbreviate(value)}, not a power of two"
            )
        return value

    def data(self, name: str) -> memoryview:
        """The raw bytes of a tensor, a view on the file."""
        entry = self.tensors[name]
        return memoryview(self._map)[entry.offset : entry.offset + entry.nbytes]


def instead(begin: bytes) -> str:
    """What a file is that begins so, and what to do."""
    if begin.startswith(LFS_POINTER):
        return f"it is {FETCH_LFS}"
    if begin.startswith(GGML_MAGICS):
        return "it is a GGML file of before August 2023; fetch a GGUF file of the model"
    if begin.lstrip().startswith(b"<"):
        return "it is a web page; fetch the file itself (on the hub, the download link)"
    return "it does not begin with 'GGUF'; fetch it again, or give another file"


def describe_version(version: int) -> str:
    """Why a version is not read, and what to do."""
    if version.to_bytes(4, "big")[0] in VERSIONS and not version & 0xFFFFFF:
        return "it is big-endian; fetch a little-endian file, or convert it (gguf-convert-endian)"
    do = "convert the model again" if version < min(VERSIONS) else "give an older file"
    return f"GGUF version {version}; versions 2 and 3 are read: {do}, or fetch another"


class _Reader:
    """A cursor over the mapped header."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.end = min(len(data), MAX_HEADER)
        self.elements = 0

    def fail(self, reason: str) -> GGUFError:
        return GGUFError(f"{self.path}: damaged GGUF header at byte {self.at}: {reason}")

    def take(self, count: int) -> bytes:
        if count > self.end - self.at:
            left = self.end - self.at
            raise self.fail(f"{count} bytes wanted, {left} left in the file; fetch it again")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > MAX_STRING:
            raise self.fail(f"a string of {length} bytes")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.fail("a string is not UTF-8") from None

    def preamble(self) -> tuple[int, int]:
        """(tensors, metadata entries) after the magic number and version."""
        begin = self.data[: len(LFS_POINTER)]
        if not begin.startswith(MAGIC):
            raise GGUFError(f"{self.path}: not a GGUF file: {instead(begin)}")
        self.take(len(MAGIC))
        version = self.number("I")
        if version not in VERSIONS:
            raise GGUFError(f"{self.path}: {describe_version(version)}")
        tensors, entries = self.number("Q"), self.number("Q")
        if max(tensors, entries) > MAX_ENTRIES:
            raise self.fail(f"{tensors} tensors and {entries} metadata entries")
        return tensors, entries

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.text()
            if key in found:
                raise self.fail(f"the key {key[:80]!r} occurs twice")
            found[key] = self.value(self.number("I"), MAX_NESTING)
        return found

    def value(self, kind: int, nesting: int) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind == ARRAY and nesting:
            return self.array(nesting - 1)
        raise self.fail(f"value type {kind}")

    def array(self, nesting: int) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        self.elements += count
        if count > self.end - self.at or self.elements > MAX_ELEMENTS:
            raise self.fail(f"an array of {count} elements")
        if kind in SCALARS:
            code = f"{count}{SCALARS[kind]}"
            return list(struct.unpack("<" + code, self.take(struct.calcsize("<" + code))))
        if kind == STRING:
            return self.texts(count)
        return [self.value(kind, nesting) for _ in range(count)]

    def texts(self, count: int) -> list[str]:
        """Many strings (a vocabulary): `text` in a loop without its calls."""
        length_at, found = struct.Struct("<Q").unpack_from, []
        data, at, end = self.data, self.at, self.end
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                start, at = at + 8, at + 8 + length
                if at > end or length > MAX_STRING:
                    raise self.fail(f"a string of {length} bytes")
                found.append(data[start:at].decode())
        except (struct.error, UnicodeDecodeError):
            raise self.fail("an array of strings is cut off or not UTF-8") from None
        self.at = at
        return found

    def tensor_entries(self, count: int) -> list[TensorEntry]:
        return [self.tensor_entry() for _ in range(count)]

    def tensor_entry(self) -> TensorEntry:
        name = self.text()
        if len(name) > MAX_NAME:
            raise self.fail(f"a tensor's name has {len(name)} characters")
        dimensions = self.number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed([self.number("Q") for _ in range(dimensions)]))
        number, offset = self.number("I"), self.number("Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise self.fail(
                f"tensor {name!r} has the unknown type {number}: a newer quantization, or damage; "
                "give a file of another type (docs/models.md), or fetch it again"
            ) from None
        return TensorEntry(name, shape, kind, offset, self.tensor_bytes(name, shape, kind))

    def tensor_bytes(self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        elements = prod(shape)
        if min(shape) < 1 or elements > 1 << 40:
            raise self.fail(f"tensor {name!r} has the shape {shape}")
        if shape[-1] % block:
            raise self.fail(f"tensor {name!r}: rows of {shape[-1]} are no multiple of {block}")
        return elements // block * block_bytes

    def check_offsets(self, entries: list[TensorEntry], alignment: int) -> dict[str, TensorEntry]:
        """Entries with offsets from byte 0, each checked to lie inside the file, where the one
        before it ends. A wrong alignment shows at the end: bytes are left over."""
        start = -(-self.at // alignment) * alignment
        placed: dict[str, TensorEntry] = {}
        expected = 0
        for entry in entries:
            begin = start + entry.offset
            if entry.name in placed:
                raise GGUFError(f"{self.path}: tensor {entry.name!r} occurs twice")
            if entry.offset != expected or begin + entry.nbytes > len(self.data):
                raise GGUFError(
                    f"{self.path}: tensor {entry.name!r} ({entry.nbytes} bytes at {begin}) does "
                    f"not fit the file of {len(self.data)} bytes; it is truncated or damaged: "
                    "fetch it again"
                )
            placed[entry.name] = TensorEntry(
                entry.name, entry.shape, entry.type, begin, entry.nbytes
            )
            expected += -(-entry.nbytes // alignment) * alignment
        if alignment != DEFAULT_ALIGNMENT and len(self.data) - start - expected >= alignment:
            raise GGUFError(
                f"{self.path}: general.alignment is {alignment}, but then the tensors end before "
                "the file does; it is damaged: fetch it again"
            )
        return placed
