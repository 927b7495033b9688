"""YAML as people write it: scripts as blocks, nothing shared by anchors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from vivace.deploy.schema.files import without_controls

OBEYED = ("::", "##")
"""beginnings of lines that CI systems obey"""


class BlockDumper(yaml.SafeDumper):
    """Text of several lines is a literal block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=choose_style(text))


def choose_style(text: str) -> str | None:
    """Quotes with escapes for what steers a terminal, or begins a line that CI obeys."""
    lines = text.replace("\t", " ").split("\n")
    if any(not line.isprintable() or line.lstrip().startswith(OBEYED) for line in lines):
        return '"'
    return "|" if len(lines) > 1 else None


BlockDumper.add_representer(str, BlockDumper.represent_text)


def dump_yaml(documents: Iterable[Any]) -> str:
    listed = list(documents)

    def dump(allow_unicode: bool) -> str:
        return yaml.dump_all(
            listed, Dumper=BlockDumper, sort_keys=False, width=4096, allow_unicode=allow_unicode
        )

    return without_controls(dump)
