"""In which lines of a deployment file its roles and other keys stand."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from vivace.deploy.locations import Location, Sources
from vivace.deploy.schema.files import Documents

ROLES, BENCHMARKS = "roles", "benchmarks"
BENCHMARK = "benchmark"
"""what findings about a benchmark have for a role"""


def collect_sources(documents: Documents) -> Sources:
    """Of a file that was read as a deployment, and of those it includes."""
    roles: dict[str, tuple[Location, ...]] = {}
    keys: dict[str, Location] = {}
    for file, (_, node) in documents.items():
        content = mapping(node)
        for name, place in role_locations(content, file):
            roles[name] = (*roles.get(name, ()), place)
        keys = {**dict(key_locations(content, file)), **keys}
    return Sources({file: text for file, (text, _) in documents.items()}, roles, keys)


def mapping(node: yaml.Node | None) -> dict[str, yaml.Node]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return {str(key.value): value for key, value in pairs}


def role_locations(content: dict[str, yaml.Node], file: str) -> Iterator[tuple[str, Location]]:
    for name, node in mapping(content.get(ROLES)).items():
        yield name, location(node, file, max(1, node.start_mark.line))
    listed = content.get(BENCHMARKS)
    for node in listed.value if isinstance(listed, yaml.SequenceNode) else ():
        yield BENCHMARK, location(node, file, node.start_mark.line + 1)


def key_locations(content: dict[str, yaml.Node], file: str) -> Iterator[tuple[str, Location]]:
    """`hardware.cards` and the like."""
    for name, node in content.items():
        line = node.start_mark.line + 1
        yield name, location(node, file, line)
        for inner, value in mapping(node).items() if name != ROLES else ():
            yield f"{name}.{inner}", location(value, file, value.start_mark.line + 1)


def location(node: yaml.Node, file: str, start: int) -> Location:
    last, column = node.end_mark.line, node.end_mark.column
    inside = column == 0 and last > node.start_mark.line
    return Location(file, start, last if inside else last + 1)
