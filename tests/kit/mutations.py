"""Changes to configurations and headers as damage, mistakes and malice make them."""

from __future__ import annotations

import copy
import struct
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from vivace.checkpoint.gguf_file import GGUFFile

NUMBERS = [
    0, 1, 2, 3, -1, -5, 7, 64, 127, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40,
    (1 << 63) - 1, 1 << 63, 1 << 70, 0.0, -0.0, 0.5, 1.5, 1e-30, 5e-324, 1e30, 1e308,
    float("nan"), float("inf"), -float("inf"),
]  # fmt: skip
OTHERS = [
    None, True, False, "", "x", "nan", "0", "silu", "relu", "complex128", "yarn", "x" * 5000,
    "a\nb", "\ud800", "\0", "../x", [], [1], [[]], [-1, "x", 1 << 70], ["x"], [None], {},
    {"x": 1}, {"1": {}}, [{"name": 5}], {"rope_type": "yarn", "factor": 0},
    {"rope_type": "dynamic"}, [1] * 1000,
]  # fmt: skip
VALUES = st.sampled_from([*NUMBERS, *OTHERS])
Place = tuple[Any, ...]


def places(tree: Any, at: Place = ()) -> list[Place]:
    """Every place in nested lists and objects; of a long list the ends are enough."""
    found = [at] if at else []
    if isinstance(tree, dict):
        keys = list(tree)
    else:
        count = len(tree) if isinstance(tree, list) else 0
        keys = sorted({0, 1, count // 2, count - 1} & set(range(count)))
    for key in [*keys[:40], *keys[-40:]] if len(keys) > 80 else keys:
        found += places(tree[key], (*at, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, tree: dict[str, Any], extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tree after one to three changes. `extra`: keys it may have and has not."""
    result = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        options = places(result) + [(key,) for key in extra]
        if not options:
            return result
        change(draw, result, draw(st.sampled_from(options)))
    return result


def change(draw: st.DrawFn, tree: Any, place: Place) -> None:
    *outer, last = place
    for key in outer:
        tree = tree[key]
    old = tree.get(last) if isinstance(tree, dict) else tree[last]
    match draw(st.sampled_from(["value", "value", "value", "delete", "list", "text", "shift"])):
        case "delete":
            if isinstance(tree, list) or last in tree:
                del tree[last]
        case "list":
            tree[last] = [old]
        case "text":
            tree[last] = str(old)[:100]
        case "shift" if isinstance(old, int | float) and not isinstance(old, bool):
            tree[last] = old + draw(st.integers(-3, 3))
        case _:
            tree[last] = copy.deepcopy(draw(VALUES))


@st.composite
def damage(draw: st.DrawFn, data: bytes, header: int) -> bytes:
    """Bytes or whole numbers written over some, and perhaps the end cut off."""
    changed = bytearray(data)
    pieces = st.one_of(
        st.binary(min_size=1, max_size=4),
        st.integers(0, (1 << 64) - 1).map(lambda n: struct.pack("<Q", n)),
        st.sampled_from([0, 1, 9, 255, 1 << 16, (1 << 31) - 1]).map(lambda n: struct.pack("<I", n)),
    )
    for _ in range(draw(st.integers(0, 3))):
        at, piece = draw(st.integers(0, header)), draw(pieces)
        changed[at : at + len(piece)] = piece
    cut = draw(st.none() | st.integers(0, len(data)))
    return bytes(changed[:cut])


def gguf_bytes(metadata: dict[str, Any], file: GGUFFile) -> bytes:
    """The file's tensors behind other metadata, each value with the type that holds it."""
    data, infos, blobs = b"", b"", []
    for entry in file.tensors.values():
        infos += text(entry.name) + struct.pack("<I", len(entry.shape))
        infos += b"".join(struct.pack("<Q", size) for size in reversed(entry.shape))
        infos += struct.pack("<IQ", entry.type, sum(map(len, blobs)))
        blob = np.asarray(file.data(entry.name)).tobytes()
        blobs.append(blob + bytes(-len(blob) % 32))
    for key, value in metadata.items():
        data += text(key) + typed(value)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(file.tensors), len(metadata)) + data + infos
    return head + bytes(-len(head) % 32) + b"".join(blobs)


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    kind = gguf_type(value)
    return struct.pack("<I", kind) + packed(value, kind)


def gguf_type(value: Any) -> int:
    if isinstance(value, bool):
        return 7
    if isinstance(value, int):
        return 4 if 0 <= value < 1 << 32 else 11 if -(1 << 63) <= value < 1 << 63 else 10
    if isinstance(value, float):
        return 12
    return 9 if isinstance(value, list) else 8


def packed(value: Any, kind: int) -> bytes:
    codes = {4: "<I", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
    if kind in codes:
        return struct.pack(codes[kind], value % (1 << 64) if kind == 10 else value)
    if kind == 8:
        return text(value if isinstance(value, str) else repr(value))
    kinds = {gguf_type(one) for one in value}
    inner = kinds.pop() if len(kinds) == 1 else 8
    joined = b"".join(packed(one, inner) for one in value)
    return struct.pack("<IQ", inner, len(value)) + joined


def write_json(file: Path, tree: Any) -> None:
    """As Python's own json writes it, NaN, Infinity and halves of characters included."""
    import json

    file.write_text(json.dumps(tree))
