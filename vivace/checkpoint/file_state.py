"""Whether a model's files are still those that a server has loaded. Torch-free."""

from __future__ import annotations

from pathlib import Path

from vivace.checkpoint.source import ModelSource

TOKENIZER_FILE = "tokenizer.json"

State = tuple[int, int] | None
"""length in bytes and time of the last change in ns; None: it is not there. The inode is left out:
file systems in user space number their files anew."""


class ModelFiles:
    """Weights and vocabulary as they are when this is made.

    A process that starts again later would read others, and go on with streams that the first ones
    began."""

    def __init__(self, source: ModelSource) -> None:
        place = source.tokenizer_path
        vocabulary = place / TOKENIZER_FILE if place.is_dir() else place
        self._states = {file: read_state(file) for file in (*source.files, vocabulary)}

    def changed(self) -> str:
        """What has become of them and what to do, in one line; empty when they are the same."""
        for file, before in self._states.items():
            now = read_state(file)
            if now != before:
                verb = "was changed" if now else "was removed"
                return (
                    f"Nothing is started again, because {file} {verb} since this server loaded it: "
                    "answers would go on with other weights or another vocabulary. Start the "
                    "server again, with the files you want"
                )
        return ""


def read_state(file: Path) -> State:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
