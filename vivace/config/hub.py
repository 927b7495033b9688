"""Where the model hubs keep their files on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vivace.config.environment import switched_on

FOLDERS = (
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)
"""variable and what is appended to its value, first set wins (huggingface_hub.constants)"""


USE_MODELSCOPE = "SGLANG_USE_MODELSCOPE"


def hub_cache(download_dir: str | None, environment: Mapping[str, str]) -> Path:
    """--download-dir, else what the hub's own variables say, else its default. The hub is
    ModelScope when SGLANG_USE_MODELSCOPE says so, else Hugging Face's."""
    if download_dir:
        return Path(download_dir).expanduser()
    if switched_on(environment, USE_MODELSCOPE):
        return Path(environment.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser()
    for name, below in FOLDERS:
        if environment.get(name):
            return Path(environment[name]).expanduser() / below
    return Path.home() / ".cache" / "huggingface" / "hub"
