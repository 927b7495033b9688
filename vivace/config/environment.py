"""Environment variables: the same three states as options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vivace.arguments import finite_number, whole_number
from vivace.config.errors import ConfigError
from vivace.config.option import Support
from vivace.config.values import switch
from vivace.config.variables import ASKS_NOTHING, QUIET, VARIABLES, Variable
from vivace.errors import nearest

PREFIXES = ("SGLANG_", "SGL_", "VIVACE_")
OWN = "VIVACE_"
PATH = re.compile(r"/[A-Za-z0-9._~:@+/-]*")
USE_MODELSCOPE = "SGLANG_USE_MODELSCOPE"
HUB_FOLDERS = (
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)
"""variable and what is appended to its value, first set wins (huggingface_hub.constants)"""


KEYS_OF_OTHERS = {"VLLM_API_KEY": "vLLM", "LLAMA_API_KEY": "llama.cpp"}
"""who has set one believes that the server asks for it"""


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(honored variables, one notice for every other that looks meant for us).

    `VIVACE_X` stands for `SGLANG_X` and wins over it. ConfigError for a value that cannot be, and
    for a variable that is not available.
    """
    honored: dict[str, str] = {}
    notices: list[str] = []
    for name, value in sorted(environ.items()):
        listed = canonical(name)
        known = VARIABLES.get(listed)
        if known is None:
            if name in KEYS_OF_OTHERS and value:
                notices.append(
                    f"{name} is a variable of {KEYS_OF_OTHERS[name]} and has no effect; "
                    "a key for this server is VIVACE_API_KEY"
                )
            if name.startswith(PREFIXES):
                notices.append(f"{name} is not known and has no effect{nearest(name, VARIABLES)}")
        elif known.state.kind is Support.WORKS:
            honored[listed] = valid(name, known, value)
        elif differs_from_default(known, value):
            notices += variable_notices(name, known, value)
    return honored, notices


def canonical(name: str) -> str:
    """The name a variable is listed under."""
    alias = "SGLANG_" + name.removeprefix(OWN)
    return alias if name.startswith(OWN) and name not in VARIABLES and alias in VARIABLES else name


def valid(name: str, known: Variable, value: str) -> str:
    """The value without surrounding blanks; ConfigError when it is not of the variable's kind."""
    text = value.strip()
    try:
        if known.kind == "switch" and text:
            switch(text)
        elif known.kind == "number":
            check_limits(finite_number(text), known.limits)
        elif known.kind == "whole number":
            whole_number(text)
        elif known.kind == "path" and text:
            check_path(text)
    except ValueError as error:
        raise ConfigError(f"{name}={value}: {error}; unset it or correct it") from None
    return text


def check_path(text: str) -> None:
    """Raises ValueError."""
    if not PATH.fullmatch(text):
        raise ValueError(
            "must be a path: / and letters, digits and . _ ~ : @ + - / without a query"
        )


def check_limits(number: float, limits: tuple[float, float] | None) -> None:
    """Raises ValueError."""
    if limits is not None and not limits[0] <= number <= limits[1]:
        raise ValueError(f"must be {limits[0]:g} to {limits[1]:g}")


def differs_from_default(known: Variable, value: str) -> bool:
    """Whether the value differs from leaving the variable alone."""
    return value.strip().lower() not in (*ASKS_NOTHING, known.default)


def variable_notices(name: str, known: Variable, value: str) -> list[str]:
    if known.state.kind is Support.NOT_AVAILABLE:
        raise ConfigError(f"{name}={value} is {known.state.text()}")
    return [] if name in QUIET else [f"{name}={value} has {known.state.text()}"]


def switched_on(environment: Mapping[str, str], name: str) -> bool:
    """Whether an honored switch is set and true."""
    text = environment.get(name, "")
    return bool(text) and switch(text)


def hub_cache(download_dir: str | None, environment: Mapping[str, str]) -> Path:
    """--download-dir, else what the hub's own variables say, else its default. The hub is
    ModelScope when SGLANG_USE_MODELSCOPE says so, else Hugging Face's."""
    if download_dir:
        return Path(download_dir).expanduser()
    if switched_on(environment, USE_MODELSCOPE):
        return Path(environment.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser()
    for name, below in HUB_FOLDERS:
        if environment.get(name):
            return Path(environment[name]).expanduser() / below
    return Path.home() / ".cache" / "huggingface" / "hub"
