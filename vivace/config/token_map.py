"""The tokens that a head proposes, the frequent ones of a language (FR-Spec; Zhao et al. 2025)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
from safetensors import SafetensorError

from vivace.config.errors import ConfigError
from vivace.files import read_file

FLAG = "--speculative-token-map"
LARGEST = 1 << 26
"""bytes of a file"""
PICKLES = (".pt", ".pth", ".bin", ".pkl")


def read_token_map(name: str, vocabulary: int) -> tuple[int, ...]:
    """Ids of a JSON list, or of the one tensor of a safetensors file, in rising order. Raises
    ConfigError."""
    refuse_pickles(name)
    path = Path(name).expanduser()
    where = f"{FLAG} {name}: must be a list of token ids from 0 to {vocabulary - 1}, as JSON or in "
    where += "a safetensors file"
    try:
        data = read_file(path, LARGEST)
        found = read_tensor(data) if path.suffix == ".safetensors" else msgspec.json.decode(data)
    except (OSError, ValueError, RecursionError, SafetensorError, KeyError, TypeError) as error:
        text = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}; {text}") from None
    ids = cast("list[Any]", found) if isinstance(found, list) else []
    if not ids or any(type(one) is not int or not 0 <= one < vocabulary for one in ids):
        raise ConfigError(where)
    return tuple(sorted(set(ids)))


def refuse_pickles(name: str) -> None:
    if name.endswith(PICKLES):
        raise ConfigError(
            f"{FLAG} {name}: pickled files are never read; save its ids as a JSON list"
        )


def read_tensor(data: bytes) -> Any:
    """None where there are several."""
    from safetensors.numpy import load  # loads numpy, which most commands do without

    tensors = list(load(data).values())
    return tensors[0].tolist() if len(tensors) == 1 else None
