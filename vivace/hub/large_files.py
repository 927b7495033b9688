"""Weights from the Hugging Face hub, in transfers that go on where an earlier one ended.

The hub's library gives every transfer a partial file of its own (version 2.4,
`_download_to_tmp_and_move`): Ctrl-C removes it, a kill leaves it behind, and the next one begins
anew. Ours has one name, the blob's, and stays. The lock, the blobs and the links are as the
library's. One file at a time, so that Ctrl-C waits for no other.
"""

from __future__ import annotations

import os
from pathlib import Path

from vivace.files import open_own_file
from vivace.hub.listing import Listing, RepoFile

LARGEST = 50_000_000_000
"""bytes; larger files the hub gives only to its library (MAX_HTTP_DOWNLOAD_SIZE there)"""


def fetch_large_file(cache: Path, listing: Listing, file: RepoFile, endpoint: str | None) -> None:
    """A file that has a SHA-256, into the snapshot of `listing`; nobody has checked it yet.

    Raises what the library does, and OSError; what has come is kept."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    folder = f"models--{listing.repo_id.replace('/', '--')}"
    blob = cache / folder / "blobs" / file.sha256
    link = cache / folder / "snapshots" / listing.commit / file.name
    lock = cache / ".locks" / folder / f"{file.sha256}.lock"
    for path in (blob, link, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(f"{blob.name}.incomplete")
    url = hf_hub_url(listing.repo_id, file.name, revision=listing.commit, endpoint=endpoint)
    with WeakFileLock(lock):
        if not blob.exists():
            flags = os.O_RDWR | os.O_CREAT
            with os.fdopen(open_own_file(partial, flags, 0o666), "r+b") as out:
                if out.seek(0, os.SEEK_END) > file.size:
                    out.truncate(0)
                http_get(
                    url,
                    out,
                    resume_size=out.seek(0, os.SEEK_END),
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    displayed_filename=file.name,
                )
            partial.replace(blob)
        if not link.exists():
            link.unlink(missing_ok=True)  # one that leads nowhere
            link.symlink_to(os.path.relpath(blob, link.parent))
