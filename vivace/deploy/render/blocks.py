"""YAML as people write it: scripts as blocks, nothing shared by anchors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class BlockDumper(yaml.SafeDumper):
    """Text of several lines is a literal block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        )


BlockDumper.add_representer(str, BlockDumper.represent_text)


def dump_yaml(documents: Iterable[Any]) -> str:
    return yaml.dump_all(
        documents, Dumper=BlockDumper, sort_keys=False, width=4096, allow_unicode=True
    )
