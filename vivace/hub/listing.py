"""Which files of a repository on a model hub are fetched: weights, configuration, tokenizer.

Only safetensors or GGUF files, JSON files, tiktoken.model and the chat template (texts) are ever
chosen: nothing that holds pickled code, and no Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vivace.checkpoint.file_state import VOCABULARY_FILES
from vivace.checkpoint.hub_cache import parse_quantization
from vivace.checkpoint.layouts import PART_OF_GGUF, is_whole_model
from vivace.checkpoint.weight_files import INDEX_FILE, PICKLED
from vivace.errors import CannotStart

NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
"""a file at the top of the repository; folders hold other formats of the same model"""
TEMPLATE = "chat_template.jinja"
LARGEST_TEXT = 64 << 20
MOST_FILES = 5000
"""that are fetched; the largest models have some hundred"""
SHOWN = 12


class HubError(CannotStart):
    """A model cannot be fetched; the text says what, why and what to do."""


@dataclass(frozen=True, kw_only=True)
class RepoFile:
    """A file as the hub describes it; `size` in bytes."""

    name: str
    size: int
    sha256: str = ""
    """of the content; empty for small files that lie in git itself"""
    git_blob: str = ""
    """git's SHA-1 of such a file (of a header and the content)"""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One revision of a repository. `commit` is what its name stood for when it was listed."""

    repo_id: str
    commit: str
    files: tuple[RepoFile, ...]


def chosen_files(listing: Listing, quantization: str = "") -> tuple[RepoFile, ...]:
    """What to fetch, weights last. Raises HubError when that is nothing, or needs a choice."""
    top = [file for file in listing.files if NAME.fullmatch(file.name)]
    texts = [file for file in top if is_text(file)]
    weights = gguf_file(listing, top, quantization) if quantization else safetensors(top)
    weights = weights or gguf_file(listing, top, quantization)
    if weights[0].name.endswith(".gguf"):
        texts = [file for file in texts if file.name != INDEX_FILE]
    if len(texts) + len(weights) > MOST_FILES:
        raise HubError(
            f"{listing.repo_id} has {len(texts) + len(weights):,} weight and JSON files, more than "
            f"the {MOST_FILES:,} of a model: is it one?"
        )
    return (*texts, *weights)


def is_text(file: RepoFile) -> bool:
    vocabulary = file.name in VOCABULARY_FILES or file.name.endswith(".json")
    return file.name == TEMPLATE or (vocabulary and file.size <= LARGEST_TEXT)


def safetensors(top: list[RepoFile]) -> list[RepoFile]:
    """The shards. `consolidated*` are the same weights once more under other names (Mistral)."""
    found = [file for file in top if file.name.endswith(".safetensors")]
    usual = [file for file in found if not file.name.startswith("consolidated")]
    return usual or found


def gguf_file(listing: Listing, top: list[RepoFile], quantization: str) -> list[RepoFile]:
    """The one GGUF file that is meant."""
    whole = [file for file in top if is_whole_model(file.name)]
    found = [file for file in whole if matches(file.name, quantization)]
    if len(found) == 1:
        return found
    if not whole:
        raise HubError(f"{listing.repo_id}: {why_nothing(listing)}")
    choices = sorted(parse_quantization(file.name) for file in whole)
    shown = ", ".join(choices[:SHOWN]) + (", ..." if len(choices) > SHOWN else "")
    asked = f"{quantization!r} fits {len(found)} files" if quantization else "several GGUF files"
    raise HubError(
        f"{listing.repo_id}: {asked}; name one as {listing.repo_id}:{choices[0]} (there: {shown})"
    )


def matches(name: str, quantization: str) -> bool:
    """Whether a file is of this quantization: its last word, whatever the case."""
    return not quantization or parse_quantization(name).lower() == quantization.lower()


def why_nothing(listing: Listing) -> str:
    names = [file.name for file in listing.files]
    if any(PART_OF_GGUF.search(name) for name in names):
        return "its GGUF files come in parts, which are not read: choose a repository with one file"
    if any(name.endswith(PICKLED) for name in names):
        return (
            "it has only files that hold pickled code (.bin, .pt), which are never read: choose a "
            "repository with safetensors or GGUF files"
        )
    return "it has neither safetensors nor GGUF files"
