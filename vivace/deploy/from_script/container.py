"""Files that say what containers and services start: found by what they hold, read as scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import msgspec

from vivace.deploy.files import STDIN
from vivace.deploy.from_script.flags import Remark
from vivace.deploy.locations import Location
from vivace.deploy.shell.interpreter import Follow

MANIFESTS = (".yaml", ".yml")
YAML = re.compile(r"""---|\{|["']?[A-Za-z_][\w.-]*["']?[ \t]*:(?:\s|$)""")
FIRST_LINE = re.compile(r"^[ \t]*[^#;\s].*$", re.MULTILINE)
MAX_CONTAINERS = 128
"""of a file"""
SECTION = re.compile(r"\[[A-Z][A-Za-z]*\]")
IMAGE = re.compile(r"(?:^|/)sglang:v?(\d+\.\d+\.\d+(?:rc\d+|\.post\d+)?)(?![\w.])")


class Container(msgspec.Struct, frozen=True):
    """`script` exports its variables and runs its command; `pod`: its number in its set;
    `machine`: the same for those that share one; `host`: its address, where the file says it;
    `notes`: what was not read; `remarks`: what is wrong with it; `undefined`: `$(NAME)` that
    nothing defines, `defined`: what is."""

    script: str
    place: Location
    pod: int = 0
    contained: bool = True
    machine: str = ""
    host: str = ""
    notes: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    undefined: tuple[str, ...] = ()
    defined: tuple[str, ...] = ()
    release: str = ""
    """of SGLang, where the image says it"""
    local: bool = False
    """whether its script names files that lie beside this one"""
    devices: int = 0
    """that it is given; 0: unknown"""
    files: dict[str, str] = {}
    """that were read for its variables, by name"""


def is_yaml(content: str) -> bool:
    """Of a text whose name does not say it: whether its first line is one of YAML."""
    first = FIRST_LINE.search(content)
    return first is not None and YAML.match(first[0]) is not None


def read_containers(name: str, content: str, follow: Follow) -> list[Container] | None:
    """None for a script. Raises ScriptError."""
    if name.endswith(MANIFESTS) or (name == STDIN and is_yaml(content)):
        from vivace.deploy.from_script.manifests import containers_in

        return containers_in(name, content, follow)
    first = FIRST_LINE.search(content)
    words = first[0].split() if first else []
    if words and SECTION.fullmatch(words[0]):
        from vivace.deploy.from_script.unit import services_in

        return services_in(name, content)
    if len(words) > 1 and words[0].upper() in ("FROM", "ARG"):
        from vivace.deploy.from_script.dockerfile import stages_in

        return stages_in(name, content)
    return None


def image_release(image: str) -> str:
    """`lmsysorg/sglang:v0.5.10-cu130` is 0.5.10."""
    found = IMAGE.search(image)
    return found[1] if found else ""


def to_script(variables: Mapping[str, str], words: list[str]) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return exports + shlex.join(words) + "\n"
