"""Documents of YAML as nodes, which know their lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from vivace.deploy.schema.files import LimitedLoader, refuse_deep, refuse_endless


def documents(content: str) -> Iterator[yaml.Node]:
    refuse_deep(content)
    yield from yaml.compose_all(content, Loader=LimitedLoader)


def plain(node: yaml.Node | None) -> Any:
    """The data of a node. Raises ValueError where aliases make it endless."""
    if node is None:
        return None
    loader = LimitedLoader("")
    try:
        found = loader.construct_document(node)
    finally:
        loader.dispose()
    refuse_endless(found)
    return found


def child(node: yaml.Node | None, *names: str) -> yaml.Node | None:
    """The value at a path of keys; None where a key is not there."""
    for name in names:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for key, value in pairs if key.value == name), None)
    return node
