"""Whether a model's files are still those that a server has loaded. Torch-free."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from vivace.checkpoint.json_files import is_file
from vivace.checkpoint.saved_state import read_saved_state
from vivace.checkpoint.source import ModelSource
from vivace.checkpoint.weight_files import SHARDED
from vivace.files import open_input

TOKENIZER_FILE, TIKTOKEN_FILE = "tokenizer.json", "tiktoken.model"
SENTENCEPIECE_FILE = "tokenizer.model"
VOCABULARY_FILES = (TOKENIZER_FILE, TIKTOKEN_FILE, SENTENCEPIECE_FILE)
"""of which a folder's tokenizer is the first that is there"""
SAMPLES = 16
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class FileState:
    """What a file is known by. `modified`: ns; `digest`: of `SAMPLES` pieces, or of all of a file
    that is no longer than they are.

    Each of them counts. Samples alone do not show a change of a few bytes elsewhere, so a new time
    of the last change is one even where they are the same (`touch`): a server that stops is
    noticed, other tokens are not. Length and time alone do not show a file put in the place of
    another with its time (`cp -p`, `rsync -t`, `tar`). The inode is left out: file systems in user
    space number their files anew."""

    length: int
    modified: int
    digest: bytes


class ModelFiles:
    """Weights and vocabulary as they are when this is made.

    A process that starts again later would read others, and go on with streams that the first ones
    began."""

    def __init__(self, source: ModelSource) -> None:
        place = source.tokenizer_path
        self._states = {
            file: read_file_state(file) for file in (*source.files, vocabulary_file(place) or place)
        }

    def changed(self) -> str:
        """What has become of them and what to do, in one line; empty when they are the same."""
        for file, before in self._states.items():
            now = read_file_state(file)
            if now != before:
                verb = "was changed" if now else "was removed, or cannot be read any more,"
                return (
                    f"Nothing is started again, because {file} {verb} since this server loaded it: "
                    "answers would go on with other weights or another vocabulary. Start the "
                    "server again, with the files you want"
                )
        return ""


def vocabulary_file(place: Path) -> Path | None:
    """The file that a tokenizer is read from: a GGUF file, or the one of a folder. None: it has
    none."""
    if not place.is_dir():
        return place
    files = (place / name for name in VOCABULARY_FILES)
    return next((file for file in files if is_file(file)), None)


def read_file_state(file: Path) -> FileState | None:
    """None: it is not there, or no file that can be read."""
    try:
        descriptor = open_input(file)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        return FileState(found.st_size, found.st_mtime_ns, sampled(descriptor, found.st_size))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def sampled(descriptor: int, length: int) -> bytes:
    """SHA-256 of pieces at even distances, the first and the last among them."""
    digest = hashlib.sha256()
    last = max(0, length - SAMPLE_BYTES)
    for place in sorted({last * n // (SAMPLES - 1) for n in range(SAMPLES)}):
        digest.update(os.pread(descriptor, SAMPLE_BYTES, place))
    return digest.digest()


def model_digest(source: ModelSource) -> str:
    """All that `model_digests` says, in one."""
    return hashlib.sha256(json.dumps(model_digests(source)).encode()).hexdigest()


def model_digests(source: ModelSource) -> dict[str, str]:
    """What a model's files are known by on another machine: names -> digests of the weights (by
    `SAMPLES` pieces and the length) and of the configuration. Files of single ranks are each on the
    machine of its rank: they are known by what they were made of. Raises SourceError."""
    found = {"config.json": hashlib.sha256(json.dumps(source.config, sort_keys=True).encode())}
    if source.format == SHARDED:
        made_of = read_saved_state(source.files[0]).checkpoint
        return {"config.json": found["config.json"].hexdigest(), "the saved model": made_of}
    for file in source.files:
        state, digest = read_file_state(file), hashlib.sha256()
        if state is not None:
            digest.update(state.length.to_bytes(8, "little") + state.digest)
        found[file.name] = digest
    return {name: digest.hexdigest() for name, digest in found.items()}
