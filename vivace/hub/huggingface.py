"""The Hugging Face hub, through its own library, which is imported when it is needed.

The address is HF_ENDPOINT's. The library reads the key: HF_TOKEN's, or that of `hf auth login`.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vivace.checkpoint.hub_cache import COMMIT, DEFAULT_REVISION, is_revision
from vivace.config.environment import switched_on
from vivace.files import write_own_file
from vivace.hub.guard import refusal, response_limits
from vivace.hub.large_files import fetch_resumable
from vivace.hub.listing import HubError, Listing, RepoFile

HASH = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})?")
"""of git or SHA-256; nothing where there is none"""
THIS_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""errors of files, not of the network"""
LIMITS = (errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""errors of what a process may have"""
USUAL_ENDPOINT = "https://huggingface.co"
TIMEOUT_SECONDS = 10.0
"""for the hub's first answer to a question about names and versions"""
LISTING_SECONDS = 60.0
"""until such an answer is whole"""
LARGEST_LISTING = 64 << 20
"""bytes of it"""


class HuggingFace:
    """Lists and downloads into `cache`, in the layout that every tool of the hub shares."""

    name = "the Hugging Face hub"

    def __init__(self, cache: Path, environment: Mapping[str, str]) -> None:
        self._cache = cache
        self._endpoint = environment.get("HF_ENDPOINT") or None
        if self._endpoint is not None and not self._endpoint.startswith(("http://", "https://")):
            raise HubError(
                f"HF_ENDPOINT is {self._endpoint!r}, which is no address: give one that begins "
                f"with https:// or http://, or unset it for {USUAL_ENDPOINT}"
            )
        if switched_on(environment, "HF_HUB_OFFLINE"):
            raise HubError(
                "HF_HUB_OFFLINE is set, so nothing is fetched: unset it, or give --model-path a "
                "directory or a model that `vivace list` shows"
            )

    def list(self, repo_id: str, revision: str | None) -> Listing:
        from huggingface_hub import HfApi

        if revision is not None and not is_revision(revision):
            raise HubError(f"{revision!r} is not a revision: give a branch, a tag or a commit")
        api = HfApi(endpoint=self._endpoint)
        limit = response_limits(LARGEST_LISTING, LISTING_SECONDS)
        with limit, readable_errors(repo_id, revision, self._endpoint):
            found = api.model_info(
                repo_id, revision=revision, timeout=TIMEOUT_SECONDS, files_metadata=True
            )
        if not isinstance(found.sha, str) or not COMMIT.fullmatch(found.sha):
            raise HubError(f"{repo_id}: the hub names no commit; is HF_ENDPOINT a hub?")
        files = tuple(repo_file(sibling) for sibling in found.siblings or ())
        return Listing(repo_id=repo_id, commit=found.sha, files=files)

    def is_cached(self, listing: Listing, file: RepoFile) -> bool:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(
            listing.repo_id, file.name, cache_dir=self._cache, revision=listing.commit
        )
        return isinstance(found, str) and Path(found).stat().st_size == file.size

    def download(self, listing: Listing, files: tuple[RepoFile, ...]) -> Path:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        logging.getLogger("httpx").setLevel(logging.WARNING)
        largest = max(file.size for file in files)
        limit = response_limits(max(largest, LARGEST_LISTING))
        with limit, readable_errors(listing.repo_id, listing.commit, self._endpoint):
            for file in files:
                if file.sha256 and not self.is_cached(listing, file):
                    fetch_resumable(self._cache, listing, file, self._endpoint)
            folder = snapshot_download(
                listing.repo_id,
                revision=listing.commit,
                cache_dir=self._cache,
                allow_patterns=[glob.escape(file.name) for file in files],
                etag_timeout=TIMEOUT_SECONDS,
                endpoint=self._endpoint,
            )
        return Path(folder)

    def accept(self, listing: Listing, revision: str | None) -> None:
        """The ref of the revision, by which the model is found (`hub_cache.resolve_commit`)."""
        name = revision or DEFAULT_REVISION
        if name == listing.commit:
            return
        repository = self._cache / f"models--{listing.repo_id.replace('/', '--')}"
        ref = repository / "refs" / name
        ref.parent.mkdir(parents=True, exist_ok=True)
        beside = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
        write_own_file(beside, listing.commit)
        beside.replace(ref)

    def discard(self, path: Path) -> None:
        """The link of a snapshot and the blob behind it."""
        if path.is_symlink():
            Path(os.path.realpath(path)).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


LARGEST_FILE = 1 << 50
"""bytes; what a hub says of larger ones is no size"""


def repo_file(sibling: Any) -> RepoFile:
    """Raises HubError when the hub describes a file by what can be no name, size or hash."""
    lfs = sibling.lfs
    name, size = sibling.rfilename, 0 if sibling.size is None else sibling.size
    sha256 = (lfs.sha256 or "") if lfs is not None else ""
    git_blob = "" if lfs is not None else sibling.blob_id or ""
    if not isinstance(name, str) or type(size) is not int or not 0 <= size <= LARGEST_FILE:
        raise HubError(f"the hub lists a file named {name!r:.80} of {size!r:.40} bytes")
    if not all(isinstance(text, str) and HASH.fullmatch(text) for text in (sha256, git_blob)):
        raise HubError(f"the hub lists {name!r:.80} with what is no hash")
    return RepoFile(name=name, size=size, sha256=sha256, git_blob=git_blob)


@contextmanager
def readable_errors(
    repo_id: str, revision: str | None, endpoint: str | None = None
) -> Iterator[None]:
    """The library's errors as one line each. Its connection errors come from the HTTP library of
    the day (requests, then httpx), so whatever is not known by name counts as the network."""
    from huggingface_hub import errors

    try:
        yield
    except HubError:
        raise
    except errors.GatedRepoError:
        raise HubError(
            f"{repo_id} is open only to accounts that accepted its conditions: accept them on its "
            "page and set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise HubError(
            f"the hub has no model {repo_id}, or it is private: check the name, or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise HubError(f"{repo_id} has no revision {revision!r}") from None
    except errors.HFValidationError:
        raise HubError(f"{repo_id!r} is not a name of a model: a name is org/name") from None
    except errors.HfHubHTTPError as error:
        raise refused(repo_id, error) from None
    except errors.LocalEntryNotFoundError as error:  # the library asked, and was refused or cut off
        why = error.__cause__
        if isinstance(why, errors.HfHubHTTPError):
            raise refused(repo_id, why) from None
        raise HubError(no_network(repo_id, endpoint, why or error)) from None
    except UnicodeEncodeError as error:
        raise HubError(
            f"{repo_id}: the hub cannot be asked ({first_line(error)}): is HF_TOKEN, or the key of "
            "`hf auth login`, right?"
        ) from None
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise HubError(
            f"{repo_id}: what answers is no hub ({what}); is HF_ENDPOINT right?"
        ) from None
    except Exception as error:
        raise local_error(repo_id, error) or HubError(
            no_network(repo_id, endpoint, error)
        ) from None


def refused(repo_id: str, error: Any) -> HubError:
    """Of the library's HfHubHTTPError; a hub may say more than a status."""
    more = f" ({first_line(error.server_message)})" if error.server_message else ""
    return HubError(f"{repo_id}: {refusal(error.response)}{more}")


def local_error(repo_id: str, error: Exception) -> HubError | None:
    """What this machine refused; None: it was the network."""
    if isinstance(error, OSError) and error.errno in THIS_DISK:
        return HubError(
            f"{repo_id} could not be written ({first_line(error)}): make room, or name another "
            "folder with --download-dir; what has come is kept"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOENT:  # the library has its own
        return HubError(
            f"{repo_id} was removed while it was fetched (`vivace rm`?); fetch it again"
        )
    if is_of_this_machine(error):
        return HubError(
            f"{repo_id} could not be fetched on this machine ({first_line(error)}): raise that "
            "limit or end other programs, and fetch it again; what has come is kept"
        )
    return None


def is_of_this_machine(error: Exception) -> bool:
    """Memory, threads, descriptors, a limit on files: everything that has nothing to do with the
    hub, whose errors have types of the HTTP library."""
    if isinstance(error, OSError):
        return error.filename is not None or error.errno in LIMITS
    return type(error) in (MemoryError, RuntimeError)


def no_network(repo_id: str, endpoint: str | None, error: BaseException) -> str:
    doubt = " Is HF_ENDPOINT, which names that address, right?" if endpoint else ""
    return (
        f"{repo_id} could not be fetched from {endpoint or USUAL_ENDPOINT} "
        f"({type(error).__name__}: {first_line(error)}).{doubt} Without a network: fetch it "
        "elsewhere (the same `vivace pull` with --download-dir FOLDER), copy the folder here, and "
        "start the server with --download-dir FOLDER"
    )


def first_line(error: BaseException | str) -> str:
    lines = str(error).strip().splitlines()
    # Words of the hub stand in it, which must not steer a terminal.
    words = "".join(c if c.isprintable() else " " for c in lines[0][:300]) if lines else ""
    return words or type(error).__name__
