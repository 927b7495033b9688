"""Weights from the Hugging Face hub, in transfers that go on where an earlier one ended.

The hub's library gives every transfer a partial file of its own (version 2.4,
`_download_to_tmp_and_move`): Ctrl-C removes it, a kill leaves it behind, and the next one begins
anew. Ours has one name, the blob's, and stays. The lock, the blobs and the links are as the
library's. One file at a time, so that Ctrl-C waits for no other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from vivace.files import open_own_file
from vivace.hub.listing import HubError, Listing, RepoFile

log = logging.getLogger(__name__)

AT_ONCE = 0.1
"""seconds"""
PIECE = 50_000_000_000
"""bytes, the most that the hub gives in one answer (MAX_HTTP_DOWNLOAD_SIZE of the library)"""


def fetch_resumable(cache: Path, listing: Listing, file: RepoFile, endpoint: str | None) -> None:
    """`fetch_large_file`, but for what the hub gives to its library alone."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        fetch_large_file(cache, listing, file, endpoint)
    except HfHubHTTPError as error:
        if file.size <= PIECE or error.response.status_code != HTTPStatus.BAD_REQUEST:
            raise
        log.warning(
            "%s: the hub gives no pieces of it, so its own library fetches it, which begins anew "
            "each time that it was interrupted",
            file.name,
        )


def fetch_large_file(cache: Path, listing: Listing, file: RepoFile, endpoint: str | None) -> None:
    """A file that has a SHA-256, into the snapshot of `listing`; nobody has checked it yet.

    Raises what the library does, and OSError; what has come is kept."""
    from huggingface_hub import hf_hub_url

    folder = f"models--{listing.repo_id.replace('/', '--')}"
    blob = cache / folder / "blobs" / file.sha256
    link = cache / folder / "snapshots" / listing.commit / file.name
    lock = cache / ".locks" / folder / f"{file.sha256}.lock"
    for path in (blob, link, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(f"{blob.name}.incomplete")
    url = hf_hub_url(listing.repo_id, file.name, revision=listing.commit, endpoint=endpoint)
    with told_lock(lock, file.name):
        if not blob.exists():
            flags = os.O_RDWR | os.O_CREAT
            with os.fdopen(open_own_file(partial, flags, 0o666), "r+b") as out:
                if out.seek(0, os.SEEK_END) > file.size:
                    out.truncate(0)
                with discarded_when_wrong(out, file):
                    fetch_pieces(url, out, file)
            partial.replace(blob)
        if not link.exists():
            link.unlink(missing_ok=True)  # one that leads nowhere
            link.symlink_to(os.path.relpath(blob, link.parent))


def fetch_pieces(url: str, out: BinaryIO, file: RepoFile) -> None:
    """What `out` does not have yet of a file. Raises what the library does."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, tqdm

    class Bar(tqdm):
        """Of the whole file, whose pieces each begin at 0 for the library."""

        def __init__(self, *args: Any, initial: int = 0, **rest: Any) -> None:
            super().__init__(*args, initial=begin + initial, **rest)

    while (have := out.seek(0, os.SEEK_END)) < file.size:
        begin = have - have % PIECE
        end = min(begin + PIECE, file.size)
        try:
            http_get(
                url,
                out,
                resume_size=have - begin,
                headers={**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}"},
                expected_size=end - begin,
                displayed_filename=file.name,
                tqdm_class=Bar,
            )
        except OSError as error:
            # Who ignores Range gives the whole file for the first piece; its hash is checked later.
            if begin or out.tell() != file.size or not is_other_content(error):
                raise


@contextmanager
def told_lock(lock: Path, name: str) -> Iterator[None]:
    """The library's lock of a file; whoever has to wait for it learns why."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock

    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=AT_ONCE))
        except Timeout:
            log.warning("%s is being fetched by another program; waiting for it", name)
            stack.enter_context(WeakFileLock(lock))
        yield


@contextmanager
def discarded_when_wrong(out: BinaryIO, file: RepoFile) -> Iterator[None]:
    """What ended with another length than the file's is an answer of somebody else (a proxy, a
    page to log in): nothing goes on behind it. Raises HubError then."""
    try:
        yield
    except OSError as error:
        if not is_other_content(error):
            raise
        out.truncate(0)
        raise HubError(
            f"{file.name}: what arrives has not the {file.size:,} bytes that the hub lists; it was "
            "removed. Fetch it again; when that does not help, a proxy in between changes it"
        ) from None


def is_other_content(error: OSError) -> bool:
    """The library says so by an OSError without a number (`http_get`); a server, by 416, that it
    has less than what has come. Every other answer of a server is an OSError there too."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    return type(error) is OSError and error.errno is None
