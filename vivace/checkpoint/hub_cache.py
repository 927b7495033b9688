"""Models in the local cache of a hub, found offline.

Layout (huggingface_hub, "Understand caching"): `models--ORG--NAME/snapshots/<commit>/` holds a
revision's files, `models--ORG--NAME/refs/<branch or tag>` the commit a name stands for.
ModelScope's layouts are in `modelscope_folders`; `repositories` reads all of them backwards.
Torch-free; nothing is downloaded or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vivace.errors import CannotStart

DEFAULT_REVISION = "main"
EXAMPLE_NAME = "Qwen/Qwen2.5-0.5B-Instruct"
PREFIX = "models--"
"""of the folders of models in the Hugging Face hub's cache"""
REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
QUANTIZATION = re.compile(r"[.-]((?:IQ|Q|TQ|BF|F|MXFP)\d[A-Za-z0-9_]*)$", re.IGNORECASE)
"""the last word of a GGUF file's name"""
COMMIT = re.compile(r"[0-9a-f]{7,64}")
"""a commit, or as much of one as a person types"""
LONGEST_REF = 256
"""bytes of a ref file, which holds a commit"""
SHOWN = 8
"""revisions that an error names"""
MODELSCOPE_REVISION = "master"
NOT_MODELS = ("models", "datasets", "spaces")
"""folders beside those of ModelScope's organizations, in the layouts without `models/`"""


class SnapshotError(CannotStart):
    """The cache has the repository but not this revision; the text says which there are."""


@dataclass(frozen=True)
class Snapshot:
    """One revision of a repository. `commit` is the name of its folder."""

    path: Path
    commit: str


HUB_ADDRESSES = ("https://", "hf.co/", "huggingface.co/")
"""what Ollama and browsers write before a name"""


def is_repo_id(text: str) -> bool:
    """`name` or `organization/name`, as the hub writes them."""
    return REPO_ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def find_snapshot(cache: Path, repo_id: str, revision: str | None) -> Snapshot | None:
    """The cached snapshot of a branch, tag or commit (None: main); None without the repository.

    Raises SnapshotError when the repository is there and the revision is not.
    """
    folder = cache / (PREFIX + repo_id.replace("/", "--"))
    if not folder.is_dir():
        return find_modelscope(cache, repo_id, revision or MODELSCOPE_REVISION)
    name = revision or DEFAULT_REVISION
    commit = resolve_commit(folder, name)
    if commit is None:
        there = revisions(folder)
        choose = "Give one of them as --revision, or fetch the other" if there else "Fetch it"
        raise SnapshotError(
            f"{repo_id}: revision {name!r} is not in the cache {folder}; there: "
            f"{there or 'none'}. {choose} with "
            f"`vivace pull {repo_id} --revision {name}`, or start with --download."
        )
    return Snapshot(folder / "snapshots" / commit, commit)


def find_modelscope(cache: Path, repo_id: str, revision: str) -> Snapshot | None:
    """The same in ModelScope's layouts, which know no commits."""
    for folder in modelscope_folders(cache, repo_id, revision):
        if folder.is_dir() and any(folder.iterdir()):
            return Snapshot(folder, revision)
    return None


def modelscope_folders(cache: Path, repo_id: str, revision: str) -> list[Path]:
    """Where ModelScope's library has kept a repository, newest layout first (modelscope_hub 0.5,
    `_download.py`: dots of a name became `___` in the older ones)."""
    owner, slash, name = repo_id.partition("/")
    if not slash or not is_revision(revision):
        return []
    safe = name.replace(".", "___")
    return [
        cache / "models" / f"{owner}--{name}" / "snapshots" / revision,
        cache / "models" / owner / safe,
        cache / "hub" / "models" / owner / safe,
        cache / "hub" / owner / safe,
    ]


@dataclass(frozen=True)
class Repository:
    """A model's folder in a cache, with all its revisions."""

    repo_id: str
    folder: Path
    revisions: tuple[str, ...]

    def snapshots(self) -> tuple[Path, ...]:
        """The folder of each revision."""
        held = self.folder / "snapshots"
        if not held.is_dir():
            return (self.folder,)[: len(self.revisions)]
        return tuple(held / name for name in self.revisions)


def repositories(cache: Path) -> Iterator[Repository]:
    """Everything that `find_snapshot` could find, in no order."""
    for folder in cache.glob(f"{PREFIX}*"):
        repo_id = folder.name.removeprefix(PREFIX).replace("--", "/", 1)
        if folder.is_dir() and is_repo_id(repo_id):
            yield Repository(repo_id, folder, tuple(snapshots(folder)))
    for folder in cache.glob("models/*--*"):
        repo_id = folder.name.replace("--", "/", 1)
        if folder.is_dir() and is_repo_id(repo_id):
            yield Repository(repo_id, folder, tuple(snapshots(folder)))
    for layout in ("models/*/*", "hub/models/*/*", "hub/*/*"):
        for folder in cache.glob(layout):
            repo_id = f"{folder.parent.name}/{folder.name.replace('___', '.')}"
            if layout == "hub/*/*" and folder.parent.name in NOT_MODELS:
                continue
            if folder.is_dir() and is_repo_id(repo_id):
                yield Repository(repo_id, folder, (MODELSCOPE_REVISION,))


def split_quantization(name: str) -> tuple[str, str]:
    """`org/name:Q4_0` -> (repository, quantization); the second is empty when none is named."""
    for prefix in HUB_ADDRESSES:
        name = name.removeprefix(prefix)
    repo_id, _, quantization = name.partition(":")
    return repo_id, quantization


def parse_quantization(name: str) -> str:
    """`SmolLM2-135M.Q4_K_M.gguf` -> Q4_K_M; the whole stem when it says none."""
    stem = name.removesuffix(".gguf")
    found = QUANTIZATION.search(stem)
    return found.group(1) if found else stem


def find_gguf_files(folder: Path, quantization: str) -> list[Path]:
    """The GGUF files of a folder that are of this quantization."""
    files = sorted(folder.glob("*.gguf"))
    return [f for f in files if parse_quantization(f.name).lower() == quantization.lower()]


def resolve_commit(folder: Path, name: str) -> str | None:
    """The name of the snapshot that a name stands for: of the commit in a ref, or of the one that
    was named, whole or as far as it is the only one that begins so. None where there is none."""
    if not is_revision(name):
        return None
    ref = folder / "refs" / name
    if ref.is_file():
        with ref.open("rb") as file:
            name = file.read(LONGEST_REF).decode("ascii", "replace").strip()
    held = snapshots(folder)
    if name in held:
        return name
    found = [commit for commit in held if commit.startswith(name)]
    return found[0] if len(found) == 1 and COMMIT.fullmatch(name) else None


def is_revision(name: str) -> bool:
    """Whether it can be a revision's name: a relative path that stays where it is put."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def snapshots(folder: Path) -> list[str]:
    held = folder / "snapshots"
    return sorted(entry.name for entry in held.iterdir() if entry.is_dir()) if held.is_dir() else []


def revisions(folder: Path) -> str:
    """The names and commits that could be asked for; empty when there are none."""
    refs = folder / "refs"
    names = sorted(str(file.relative_to(refs)) for file in refs.rglob("*") if file.is_file())
    known = [*(name for name in names if resolve_commit(folder, name)), *snapshots(folder)]
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(known[:SHOWN]) + more


def describe_cache(cache: Path) -> str:
    if cache.is_dir():
        return str(cache)
    return f"{cache}, which is not {'a folder' if cache.exists() else 'there'}"
