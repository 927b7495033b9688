"""What the local cache of a hub holds: `vivace list` and `vivace rm`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from vivace.checkpoint.hub_cache import COMMIT, is_repo_id
from vivace.hub.listing import HubError

PREFIX = "models--"


@dataclass(frozen=True, kw_only=True)
class HeldModel:
    """A model in the cache, all its revisions together. `size` in bytes on the disk."""

    repo_id: str
    folder: Path
    revisions: tuple[str, ...]
    formats: tuple[str, ...]
    size: int
    used: float
    """when a file of it was last read or written, seconds since 1970"""


def held_models(cache: Path) -> list[HeldModel]:
    """By name. A folder that cannot be read is left out."""
    found = [*huggingface_models(cache), *modelscope_models(cache)]
    return sorted(found, key=lambda model: model.repo_id.lower())


def huggingface_models(cache: Path) -> list[HeldModel]:
    folders = [folder for folder in cache.glob(PREFIX + "*") if folder.is_dir()]
    return [
        held_model(
            folder.name.removeprefix(PREFIX).replace("--", "/", 1),
            folder,
            [entry.name[:12] for entry in folder.glob("snapshots/*") if COMMIT.match(entry.name)],
        )
        for folder in folders
    ]


def modelscope_models(cache: Path) -> list[HeldModel]:
    """In the library's present layout and in the one before it."""
    models = [
        held_model(
            folder.name.replace("--", "/", 1),
            folder,
            [entry.name for entry in folder.glob("snapshots/*") if entry.is_dir()],
        )
        for folder in cache.glob("models/*--*")
        if folder.is_dir()
    ]
    older = [f for root in ("models", "hub/models") for f in cache.glob(f"{root}/*/*")]
    models += [
        held_model(f"{folder.parent.name}/{folder.name.replace('___', '.')}", folder, ["master"])
        for folder in older
        if folder.is_dir() and "--" not in folder.parent.name
    ]
    return models


def held_model(repo_id: str, folder: Path, revisions: list[str]) -> HeldModel:
    files = [file for file in folder.rglob("*") if file.is_file()]
    stats = [file.stat() for file in files if not file.is_symlink()]
    suffixes = {file.suffix for file in files}
    return HeldModel(
        repo_id=repo_id,
        folder=folder,
        revisions=tuple(sorted(revisions)),
        formats=tuple(s.removeprefix(".") for s in (".safetensors", ".gguf") if s in suffixes),
        size=sum(stat.st_size for stat in stats),
        used=max((max(stat.st_atime, stat.st_mtime) for stat in stats), default=0.0),
    )


def remove(cache: Path, repo_id: str) -> HeldModel:
    """Delete a model with all its revisions. HubError when it is not there."""
    if not is_repo_id(repo_id):
        raise HubError(f"{repo_id!r} is not a name of a model; `vivace list` shows the names")
    found = next((model for model in held_models(cache) if model.repo_id == repo_id), None)
    if found is None:
        raise HubError(f"there is no model {repo_id} in {cache}; `vivace list` shows what there is")
    if found.folder.is_symlink():
        raise HubError(f"{found.folder} is a link to another place; remove it there")
    shutil.rmtree(found.folder)
    locks = cache / ".locks" / found.folder.name
    shutil.rmtree(locks, ignore_errors=True)
    return found
