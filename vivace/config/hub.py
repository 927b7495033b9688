"""Where the Hugging Face hub keeps its files on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDERS = (
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)
"""variable and what is appended to its value, first set wins (huggingface_hub.constants)"""


def hub_cache(download_dir: str | None, environment: Mapping[str, str]) -> Path:
    """--download-dir, else what the hub's own variables say, else its default."""
    if download_dir:
        return Path(download_dir).expanduser()
    for name, below in FOLDERS:
        if environment.get(name):
            return Path(environment[name]).expanduser() / below
    return Path.home() / ".cache" / "huggingface" / "hub"
