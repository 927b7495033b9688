"""Writes vivace/config/releases/libraries.json: variables that libraries below SGLang read.

`python tools/library_variables.py WHEEL...` reads the names out of wheels, or of the folder of an
installed package (named NAME-VERSION), without importing anything: what Python files ask os.environ
for, and words of shared libraries that begin as the library's variables do. Constants of the same
form come along: they only make the list longer. The lists of libraries without a wheel stay as they
are; their sources are in the file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import msgspec

TABLE = Path(__file__).resolve().parents[1] / "vivace/config/releases/libraries.json"
BEGINNINGS = {
    "torch_npu": r"HCCL|ASCEND|TORCH|PYTORCH|NPU|TASK|STREAMS|COMBINED|MULTI|OOM|P2P|PER|CPU|INF",
    "mooncake_transfer_engine": r"MC|MOONCAKE|ASCEND",
    "nvidia_nccl_cu12": r"NCCL",
    "torch": r"TORCH|PYTORCH|GLOO|TORCHINDUCTOR|TORCHELASTIC",
}
"""wheel -> how the variables in its shared libraries begin"""
ASKED = re.compile(
    r"""(?:environ(?:\.get|\.setdefault)?\s*[\[(]|getenv\s*\()\s*["']([A-Z][A-Z0-9_]{3,})["']"""
)


def files_in(wheel: Path) -> Iterator[tuple[str, bytes]]:
    if wheel.is_dir():
        yield from ((path.name, path.read_bytes()) for path in wheel.rglob("*") if path.is_file())
        return
    with ZipFile(wheel) as archive:
        yield from ((name, archive.read(name)) for name in archive.namelist())


def names_in(wheel: Path) -> list[str]:
    begin = BEGINNINGS[wheel.name.split("-")[0]]
    word = re.compile(rb"(?<![A-Za-z0-9_])((?:%s)(?:_[A-Z0-9]+)+)\0" % begin.encode())
    found: set[str] = set()
    for name, raw in files_in(wheel):
        if name.endswith(".py"):
            text = raw.decode("utf-8", "replace")
            found |= {each for each in ASKED.findall(text) if "_" in each}
        elif ".so" in name:
            found |= {match.decode() for match in word.findall(raw)}
    return sorted(found)


def main(wheels: list[str]) -> None:
    table = msgspec.json.decode(TABLE.read_bytes(), type=dict[str, dict[str, str]])
    for wheel in map(Path, wheels):
        library, version = wheel.name.split("-")[:2]
        table[library] = {"source": f"read out of {version}", "names": " ".join(names_in(wheel))}
    TABLE.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
