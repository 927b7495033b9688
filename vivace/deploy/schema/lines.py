"""In which lines of a deployment file its roles stand."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from vivace.deploy.files import FileTooLarge, PathName, beside, read
from vivace.deploy.locations import Location, Sources
from vivace.deploy.schema.files import LARGEST, MAX_DEPTH, SafeLoader

ROLES = "roles"


def sources_of(path: PathName) -> Sources:
    """Of a file that was read as a deployment before, and of those it includes."""
    texts: dict[str, str] = {}
    roles: dict[str, tuple[Location, ...]] = {}
    file: str | None = str(path)
    for _ in range(MAX_DEPTH):
        if file is None or file in texts:
            break
        try:
            texts[file] = read(file, LARGEST).decode()
        except (OSError, FileTooLarge, ValueError):
            break
        content = mapping(yaml.compose(texts[file], Loader=SafeLoader))
        for name, place in places(content, file):
            roles[name] = (*roles.get(name, ()), place)
        include = content.get("include")
        file = beside(file, str(include.value)) if include is not None else None
    return Sources(texts, roles)


def mapping(node: yaml.Node | None) -> dict[str, yaml.Node]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return {str(key.value): value for key, value in pairs}


def places(content: dict[str, yaml.Node], file: str) -> Iterator[tuple[str, Location]]:
    for name, node in mapping(content.get(ROLES)).items():
        start, end = node.start_mark.line, node.end_mark.line
        inside = node.end_mark.column == 0 and end > start
        yield name, Location(file, max(1, start), end if inside else end + 1)
