"""Fetch a model from a hub: list, choose, check the room, download, check the hashes."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vivace.checkpoint.hub_cache import EXAMPLE_NAME, is_repo_id, split_quantization
from vivace.checkpoint.source import EMBEDDED_NAME, SourceError, locate
from vivace.config.environment import USE_MODELSCOPE, switched_on
from vivace.config.values import size_text
from vivace.hub.listing import HubError, Listing, RepoFile, chosen_files

log = logging.getLogger(__name__)

BLOCK = 1 << 20
SPARE = 256 << 20
"""bytes that stay free on the disk"""
LONG_TO_READ = 4 << 30
"""bytes that take several seconds"""


class Hub(Protocol):
    """A model hub. Every call ends within a bounded time when the network does not answer."""

    name: str

    def list(self, repo_id: str, revision: str | None) -> Listing:
        """Raises HubError."""
        ...

    def is_cached(self, listing: Listing, file: RepoFile) -> bool:
        """Whether the file is in the cache already."""
        ...

    def download(self, listing: Listing, files: tuple[RepoFile, ...]) -> Path:
        """The folder with the files; those that are whole stay. Raises HubError."""
        ...

    def accept(self, listing: Listing, revision: str | None) -> None:
        """The files were checked: from now on the revision's name stands for this commit."""
        ...

    def discard(self, path: Path) -> None:
        """Remove a file that turned out to be damaged, so that the next download fetches it."""
        ...


@dataclass(frozen=True, kw_only=True)
class FetchedModel:
    """Where a model lies now. `path`: a folder, or the GGUF file that was named."""

    path: Path
    commit: str
    bytes_fetched: int


def fetch(
    name: str, revision: str | None, hub: Hub, cache: Path, say: Callable[[str], None]
) -> FetchedModel:
    """`org/name` or `org/name:QUANTIZATION` -> its files in the cache. Raises HubError."""
    repo_id, quantization = split_quantization(name)
    if "/" not in repo_id or not is_repo_id(repo_id):
        raise HubError(
            f"{repo_id!r} is not a name of a model: on the hub a name is org/name, as "
            f"{EXAMPLE_NAME} (`vivace pull` alone gets the embedded model, {EMBEDDED_NAME})"
        )
    listing = hub.list(repo_id, revision)
    files = chosen_files(listing, quantization)
    missing = tuple(file for file in files if not hub.is_cached(listing, file))
    size = sum(file.size for file in missing)
    check_room(cache, size)
    if missing:
        files_text = "1 file" if len(missing) == 1 else f"{len(missing)} files"
        say(f"Fetching {repo_id} from {hub.name}: {files_text}, {size_text(size)}")
    folder = hub.download(listing, files)
    whole = sum(file.size for file in files)
    if whole > LONG_TO_READ:
        say(f"Reading {size_text(whole)} to check the hashes")
    check_hashes(hub, folder, files)
    hub.accept(listing, revision)
    unhashed = [file.name for file in files if not (file.sha256 or file.git_blob)]
    if unhashed:
        say(f"{hub.name} lists no hash of {', '.join(unhashed)}: only the size was checked")
    weights = folder / files[-1].name
    return FetchedModel(
        path=weights if quantization else folder, commit=listing.commit, bytes_fetched=size
    )


def fetch_unless_here(
    name: str, revision: str | None, cache: Path, environment: Mapping[str, str]
) -> None:
    """What --download does: a path, and a model that is whole in the cache, need no hub."""
    try:
        locate(name, revision=revision, cache=cache)
    except SourceError:
        if Path(name).expanduser().exists() or not is_repo_id(split_quantization(name)[0]):
            raise
        fetch(name, revision, select_hub(environment, cache), cache, log.info)


def check_room(cache: Path, size: int) -> None:
    """HubError when the disk cannot hold `size` more bytes."""
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise HubError(
            f"{folder} has {size_text(free)} free, the files need {size_text(size)}: free some, or "
            "name a folder on another disk with --download-dir"
        )


def check_hashes(hub: Hub, folder: Path, files: Sequence[RepoFile]) -> None:
    """HubError when files are missing, as the hub's library lets them when the hub stops answering;
    or when their content is not what the hub lists: all of those are removed.

    Files that were there before are checked too: a fetch that was killed leaves whole files that
    nobody has looked at."""
    missing = [file.name for file in files if not (folder / file.name).exists()]
    if missing:
        raise HubError(
            f"{', '.join(missing)}: not there, because {hub.name} stopped answering or the model "
            "was removed meanwhile; what has come is kept. Fetch it again"
        )
    wrong = [file.name for file in files if not is_as_listed(folder / file.name, file)]
    for name in wrong:
        hub.discard(folder / name)
    if wrong:
        raise HubError(
            f"{', '.join(wrong)}: what arrived is not what {hub.name} lists (another hash or "
            "size); it was removed. Fetch it again; when that does not help, a proxy in between "
            "changes it"
        )


def is_as_listed(path: Path, file: RepoFile) -> bool:
    return path.stat().st_size == file.size and digest(path, file) == (file.sha256 or file.git_blob)


def digest(path: Path, file: RepoFile) -> str:
    """SHA-256 of a large file; git's SHA-1 of a small one; what is listed when neither is."""
    if file.sha256:
        found = hashlib.sha256()
    elif file.git_blob:
        found = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    else:
        return ""
    with path.open("rb") as content:
        while block := content.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def select_hub(environment: Mapping[str, str], cache: Path) -> Hub:
    """ModelScope when SGLANG_USE_MODELSCOPE says so, else the Hugging Face hub."""
    if switched_on(environment, USE_MODELSCOPE):
        from vivace.hub.modelscope import ModelScope

        return ModelScope(cache)
    from vivace.hub.huggingface import HuggingFace

    return HuggingFace(cache, environment)
