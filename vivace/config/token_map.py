"""The tokens that a head proposes, the frequent ones of a language (FR-Spec; Zhao et al. 2025)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from vivace.checkpoint.json_files import read_value
from vivace.config.errors import ConfigError
from vivace.files import FileTooLarge, read_file

FLAG = "--speculative-token-map"
LARGEST = 1 << 26
"""bytes of a file"""
PICKLES = (".pt", ".pth", ".bin", ".pkl")


def read_token_map(name: str, vocabulary: int) -> tuple[int, ...]:
    """Ids of a JSON list, or of the one tensor of a safetensors file, in rising order. Raises
    SourceError, ConfigError."""
    refuse_pickles(name)
    path = Path(name).expanduser()
    try:
        read_file(path, LARGEST)
    except (OSError, FileTooLarge) as error:
        text = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{FLAG} {name}: {text}; name a file of token ids") from None
    found = read_tensor(path) if path.suffix == ".safetensors" else read_value(path, LARGEST)
    ids = cast("list[Any]", found) if isinstance(found, list) else []
    if not ids or any(type(one) is not int or not 0 <= one < vocabulary for one in ids):
        raise ConfigError(
            f"{FLAG} {name}: must be a list of token ids from 0 to {vocabulary - 1}, as JSON or in "
            "a safetensors file"
        )
    return tuple(sorted(set(ids)))


def refuse_pickles(name: str) -> None:
    if name.endswith(PICKLES):
        raise ConfigError(
            f"{FLAG} {name}: pickled files are never read; save its ids as a JSON list"
        )


def read_tensor(path: Path) -> Any:
    opened: Any = safe_open
    try:
        with opened(path, framework="np") as file:
            names = list(file.keys())
            return file.get_tensor(names[0]).tolist() if len(names) == 1 else None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{FLAG} {path}: {error}; write it again") from None
