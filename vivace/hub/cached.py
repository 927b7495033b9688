"""What the local cache of a hub holds: `vivace list` and `vivace rm`."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vivace.checkpoint.hub_cache import Repository, is_repo_id, repositories
from vivace.checkpoint.layouts import is_whole_model
from vivace.checkpoint.source import (
    EMBEDDED_NAME,
    SourceError,
    embedded_file,
    is_gguf,
    located_directory,
    single_gguf,
)
from vivace.hub.listing import HubError

EMBEDDED_TITLE = f"{EMBEDDED_NAME} (embedded)"
UNFINISHED = ".incomplete"
"""suffix of what the hub's library has begun to fetch"""
SHORT = 12
"""characters of a commit that are shown"""


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A model in the cache, all its revisions together. `size` in bytes on the disk."""

    repo_id: str
    folder: Path
    revisions: tuple[str, ...]
    formats: tuple[str, ...]
    size: int
    unfinished: int = 0
    """bytes of `size` that belong to downloads under way, or to some that did not end"""
    broken: bool = False
    """a link of it leads nowhere: a file was taken away"""
    problem: str = ""
    """why none of its revisions can be served; empty: one can"""
    used: float | None
    """when a file of it was last read or written, seconds since 1970; None without files"""


def cached_models(cache: Path) -> list[CachedModel]:
    """By name. HubError when the cache cannot be read."""
    try:
        found = [cached_model(repository) for repository in repositories(cache)]
    except OSError as error:
        raise HubError(
            f"{error.filename or cache}: {error.strerror}; HF_HUB_CACHE or --download-dir names "
            "another cache"
        ) from None
    return sorted(found, key=lambda model: model.repo_id.lower())


def cached_model(repository: Repository) -> CachedModel:
    stats: list[os.stat_result] = []
    unfinished, broken = 0, False
    suffixes: set[str] = set()
    for file in repository.folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a download under way has taken it away
            broken |= file.is_symlink() and not file.exists()
            if file.is_file():
                suffixes.add(file.suffix)
                if not file.is_symlink():
                    stat = file.stat()
                    stats.append(stat)
                    unfinished += stat.st_size if file.suffix == UNFINISHED else 0
    return CachedModel(
        repo_id=repository.repo_id,
        folder=repository.folder,
        revisions=tuple(sorted(name[:SHORT] for name in repository.revisions)),
        formats=tuple(s.removeprefix(".") for s in (".safetensors", ".gguf") if s in suffixes),
        size=sum(stat.st_size for stat in stats),
        unfinished=unfinished,
        broken=broken,
        problem=why_unusable(repository),
        used=max((max(stat.st_atime, stat.st_mtime) for stat in stats), default=None),
    )


def why_unusable(repository: Repository) -> str:
    """Why no revision can be served; empty when one can."""
    problem = "it has no files of a model"
    for folder in repository.snapshots():
        try:
            if not is_gguf(folder, "auto"):
                located_directory(folder, "auto")
            elif not any(is_whole_model(file.name) for file in folder.glob("*.gguf")):
                single_gguf(folder)
        except SourceError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
        else:
            return ""
    return problem


def embedded_model() -> list[CachedModel]:
    """The model that comes as a package; none where it is not installed."""
    try:
        file = embedded_file()
    except SourceError:
        return []
    stat = file.stat()
    return [
        CachedModel(
            repo_id=EMBEDDED_TITLE,
            folder=file,
            revisions=(),
            formats=("gguf",),
            size=stat.st_size,
            used=max(stat.st_atime, stat.st_mtime),
        )
    ]


def removable(cache: Path, repo_id: str) -> CachedModel:
    """What `remove` would delete. HubError when it is not there."""
    whole = repo_id.partition(":")[0]
    if whole != repo_id and is_repo_id(whole):
        raise HubError(f"models are removed with all their files: `vivace rm {whole}`")
    if not is_repo_id(repo_id):
        raise HubError(f"{repo_id!r} is not a name of a model; `vivace list` shows the names")
    found = next((model for model in cached_models(cache) if model.repo_id == repo_id), None)
    if found is None:
        raise HubError(f"there is no model {repo_id} in {cache}; `vivace list` shows what there is")
    if found.folder.is_symlink():
        raise HubError(f"{found.folder} is a link to another place; remove it there")
    return found


def remove(cache: Path, repo_id: str) -> CachedModel:
    """Delete a model with all its revisions. HubError when it is not there."""
    found = removable(cache, repo_id)
    shutil.rmtree(found.folder)
    locks = cache / ".locks" / found.folder.name
    shutil.rmtree(locks, ignore_errors=True)
    return found
