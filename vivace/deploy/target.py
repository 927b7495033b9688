"""The engine a deployment is for."""

from __future__ import annotations

from typing import Literal

import msgspec

from vivace.config.releases.tables import releases, span, status, takers
from vivace.errors import nearest


class Target(msgspec.Struct, frozen=True):
    """`version` is empty for SGLang of any version."""

    engine: Literal["sglang", "vivace"] = "sglang"
    version: str = ""

    @property
    def text(self) -> str:
        return f"{self.engine} {self.version}".strip()

    def since(self, release: str) -> bool:
        """Whether the version is known, and at least this one."""
        return bool(self.version) and releases().index(self.version) >= releases().index(release)

    def before(self, release: str) -> bool:
        """Whether the version is known, and older."""
        return bool(self.version) and not self.since(release)

    def lacks(self, flag: str) -> bool:
        """Whether the version is known and does not have a flag that others have."""
        if not self.version or not flag.startswith("--"):
            return False
        return status(flag, self.version)[0] == "unknown" and bool(takers(flag))


def versions_that_do(found: list[str]) -> str:
    """In parentheses, behind what another version does not do; empty if none does."""
    return f" (versions that do: {span(found)})" if found else ""


def parse_target(text: str) -> Target:
    """From `sglang`, `sglang==0.5.10`, `vivace`. Raises ValueError with the choices."""
    engine, _, version = text.strip().partition("==")
    if engine == "vivace" and not version:
        return Target("vivace")
    if engine == "sglang" and version in ("", *releases()):
        return Target("sglang", version)
    known = releases()
    near = nearest(version, known, 0.75) if engine == "sglang" else ""
    raise ValueError(
        f"unknown target {text!r}{near} (known: vivace, sglang, and sglang=={known[0]} to "
        f"sglang=={known[-1]}, as PyPI has them)"
    )


def parse_release(text: str) -> str:
    """`0.5.10` of `0.5.10` or `sglang==0.5.10`. Raises ValueError with the choices."""
    return parse_target(text if text.startswith("sglang==") else f"sglang=={text}").version
