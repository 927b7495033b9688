"""ModelScope, through its own library `modelscope-hub` (or `modelscope`, which brings it).

The address is MODELSCOPE_DOMAIN's, the key MODELSCOPE_API_TOKEN's: the library reads both.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vivace.checkpoint.hub_cache import modelscope_folders
from vivace.hub.listing import HubError, Listing, RepoFile

NO_LIBRARY = (
    "SGLANG_USE_MODELSCOPE needs the package modelscope-hub: pip install modelscope-hub (or unset "
    "the variable to fetch from the Hugging Face hub)"
)


class ModelScope:
    """Lists and downloads into ModelScope's own cache."""

    name = "ModelScope"

    def __init__(self, cache: Path) -> None:
        try:
            from modelscope_hub import HubApi  # type: ignore[import-not-found]
        except ImportError:
            raise HubError(NO_LIBRARY) from None
        self._cache = cache
        self._api: Any = HubApi()

    def list(self, repo_id: str, revision: str | None) -> Listing:
        with readable_errors(repo_id):
            found = self._api.list_repo_files(repo_id, "model", revision=revision, recursive=False)
        files = tuple(
            RepoFile(name=file.path, size=file.size or 0, sha256=file.sha256 or "")
            for file in found
            if not file.is_dir
        )
        return Listing(repo_id=repo_id, commit=revision or "master", files=files)

    def is_cached(self, listing: Listing, file: RepoFile) -> bool:
        places = modelscope_folders(self._cache, listing.repo_id, listing.commit)
        found = next((place / file.name for place in places if (place / file.name).is_file()), None)
        return found is not None and found.stat().st_size == file.size

    def download(self, listing: Listing, files: tuple[RepoFile, ...]) -> Path:
        with readable_errors(listing.repo_id):
            return Path(
                self._api.download_repo(
                    listing.repo_id,
                    "model",
                    revision=listing.commit,
                    cache_dir=self._cache,
                    allow_patterns=[glob.escape(file.name) for file in files],
                )
            )

    def accept(self, listing: Listing, revision: str | None) -> None:
        """ModelScope's folders are named by the revision itself."""

    def discard(self, path: Path) -> None:
        path.unlink(missing_ok=True)


@contextmanager
def readable_errors(repo_id: str) -> Iterator[None]:
    """The library's errors as one line each."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise HubError(
            f"{repo_id} could not be fetched from ModelScope ({type(error).__name__}: "
            f"{lines[0][:300]}). Check the name and the network; a directory given as --model-path "
            "needs neither"
        ) from None
