"""The files of a folder that have a model's weights: those of everybody, or of single ranks.
Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.json_files import MAX_INDEX, is_file, read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
OTHERS = (".safetensors", ".gguf", ".h5", ".msgpack", ".onnx")
"""ends of names of further files of weights"""
SHARDED = "sharded_state"
"""--load-format of files that hold what one rank has each"""
PATTERN = "model-rank-{rank}-part-{part}.safetensors"
"""of their names, as SGLang and vLLM have it"""
LONGEST_PATTERN = 200


def check_pattern(pattern: str) -> None:
    """Raises SourceError for one that names no file of a folder for every rank and part."""
    filled = pattern.replace("{rank}", "0", 1).replace("{part}", "0", 1)
    fits = pattern.count("{rank}") == pattern.count("{part}") == 1
    name = fits and Path(filled).name == filled and filled.endswith(".safetensors")
    if not name or "{" in filled or len(pattern) > LONGEST_PATTERN:
        raise SourceError(
            f"the pattern {pattern[:80]!r} must be a file name with {{rank}} and {{part}} that "
            f"ends with .safetensors, as {PATTERN}"
        )


def saved_files(folder: Path, pattern: str) -> tuple[Path, ...]:
    """Those of all ranks. Raises SourceError: there are none, or a part is missing."""
    check_pattern(pattern)
    found = dict(sorted(numbered(folder.iterdir(), pattern)))
    if not found:
        raise SourceError(
            f"{folder}: no file named {pattern}; `vivace save-sharded-state` writes them, and "
            "other models are loaded without --load-format sharded_state"
        )
    for rank, part in found:
        if part and (rank, part - 1) not in found:
            name = fill(pattern, rank, part - 1)
            raise SourceError(f"{folder}: {name} is missing; save the model again")
    return tuple(found.values())


def files_of_rank(files: Iterable[Path], pattern: str, rank: int) -> tuple[Path, ...]:
    """In the order of parts"""
    return tuple(path for (of, _), path in sorted(numbered(files, pattern)) if of == rank)


def numbered(files: Iterable[Path], pattern: str) -> Iterator[tuple[tuple[int, int], Path]]:
    """((rank, part), file)"""
    text = re.escape(pattern)
    for key in ("rank", "part"):
        text = text.replace(rf"\{{{key}\}}", rf"(?P<{key}>\d{{1,6}})")
    name = re.compile(text)
    for path in files:
        if found := name.fullmatch(path.name):
            yield (int(found["rank"]), int(found["part"])), path


def fill(pattern: str, rank: int, part: int) -> str:
    return pattern.replace("{rank}", str(rank)).replace("{part}", str(part))


def safetensors_files(path: Path) -> tuple[Path, ...]:
    """The shards named by the index, or the single file, or every *.safetensors."""
    index = path / INDEX_FILE
    if is_file(index):
        return indexed_files(path, index)
    single = path / SINGLE_FILE
    files = (single,) if is_file(single) else tuple(sorted(path.glob("*.safetensors")))
    if any(numbered(files, PATTERN)):
        raise SourceError(
            f"{path}: files of single ranks ({files[0].name}); add --load-format sharded_state"
        )
    if files:
        return files
    pickled = sorted(file.name for file in path.iterdir() if file.suffix in PICKLED)
    reason = (
        f"only pickled code, which is never read ({', '.join(pickled[:3])}): convert the model to "
        "safetensors"
        if pickled
        else "no *.safetensors file: give the folder that has the model's files, or a GGUF file"
    )
    raise SourceError(f"{path}: {reason}")


def indexed_files(path: Path, index: Path) -> tuple[Path, ...]:
    names = read_json(index, limit=MAX_INDEX, required=True).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise SourceError(f"{index}: no valid `weight_map`; fetch the file again")
    for tensor, name in names.items():
        if not isinstance(name, str) or not name.endswith(".safetensors"):
            raise SourceError(
                f"{index}: weight_map places {tensor[:80]!r} in {str(name)[:80]!r}, which is no "
                "name of a safetensors file; fetch the index again"
            )
        if Path(name).name != name:
            raise SourceError(f"{index}: shard name {name[:80]!r} leaves the directory")
    files = tuple(path / name for name in sorted(set(names.values())))
    for file in files:
        if not is_file(file):
            raise SourceError(f"{index}: the shard {file.name[:80]!r} is missing; fetch it")
    return files


def beside_weights(model: Path) -> Iterator[Path]:
    """The files of a model that say what it is, also those of the folders in which
    sentence-transformers says how it pools."""
    for file in model.iterdir():
        if file.suffix not in (*PICKLED, *OTHERS) and file.name != INDEX_FILE and is_file(file):
            yield file
    for file in model.glob("*/config.json"):
        if is_file(file):
            yield file
