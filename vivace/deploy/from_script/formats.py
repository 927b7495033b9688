"""Files that say what containers and services start, found by their names or what they hold."""

from __future__ import annotations

import re

from vivace.deploy.files import STDIN
from vivace.deploy.from_script.container import Container
from vivace.deploy.shell.interpreter import Follow
from vivace.deploy.shell.reader import ScriptError

MAX_SCRIPTS = 1 << 20
"""characters that all containers of a file start: stages may take over each other's variables"""
MANIFESTS = (".yaml", ".yml")
YAML = re.compile(r"""---|\{|["']?[A-Za-z_][\w.-]*["']?[ \t]*:(?:\s|$)""")
FIRST_LINE = re.compile(r"^[ \t]*[^#;\s].*$", re.MULTILINE)
SECTION = re.compile(r"\[[A-Z][A-Za-z]*\]")


def is_yaml(content: str) -> bool:
    """Of a text whose name does not say it: whether its first line is one of YAML."""
    first = FIRST_LINE.search(content)
    return first is not None and YAML.match(first[0]) is not None


def read_containers(name: str, content: str, follow: Follow) -> list[Container] | None:
    """None for a script. Raises ScriptError."""
    found = in_its_format(name, content, follow)
    if found and sum(len(each.script) for each in found) > MAX_SCRIPTS:
        raise ScriptError(f"{name}: {len(found)} containers of more than {MAX_SCRIPTS} characters")
    return found


def in_its_format(name: str, content: str, follow: Follow) -> list[Container] | None:
    if name.endswith(MANIFESTS) or (name == STDIN and is_yaml(content)):
        from vivace.deploy.from_script.manifests import containers_in

        return containers_in(name, content, follow)
    first = FIRST_LINE.search(content)
    words = first[0].split() if first else []
    if words and SECTION.fullmatch(words[0]):
        from vivace.deploy.from_script.unit import services_in

        return services_in(name, content, follow)
    if len(words) > 1 and words[0].upper() in ("FROM", "ARG"):
        from vivace.deploy.from_script.dockerfile import stages_in

        return stages_in(name, content)
    return None
