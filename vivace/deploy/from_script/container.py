"""What a container or a service starts, as a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from vivace.deploy.from_script.flags import Remark
from vivace.deploy.from_script.programs import DYNAMO, VLLM
from vivace.deploy.from_script.roles import StartedServer, TargetPort, flag_value
from vivace.deploy.locations import Location
from vivace.deploy.shell.reader import ScriptError

MAX_CONTAINERS = 128
"""of a file"""
MAX_SPLIT = 1 << 16
"""characters: shlex takes time with the square of a word's length"""
SHELLS = ("sh", "bash", "zsh", "dash")
USED = re.compile(r"\$\{?([A-Za-z_]\w*)")
IMAGE = re.compile(r"(?:^|/)sglang:v?(\d+\.\d+\.\d+(?:rc\d+|\.post\d+)?)(?![\w.])")


class Container(msgspec.Struct, frozen=True):
    """`script` exports its variables and runs its command; `pod`: its number in its set;
    `machine`: the same for those that share one; `host`: its address, where the file says it;
    `remarks`: what is wrong with it, or was not read."""

    script: str
    place: Location
    pod: int = 0
    contained: bool = True
    machine: str = ""
    host: str = ""
    remarks: tuple[Remark, ...] = ()
    release: str = ""
    """of SGLang, where the image says it"""
    network: str = ""
    """the same for what shares addresses and ports"""
    alone: bool = True
    """whether nothing runs in it that is not read"""
    names: tuple[str, ...] = ()
    """under which others find it; `closed`: and under no others"""
    closed: bool = False
    target_ports: tuple[TargetPort, ...] = ()
    labels: dict[str, str] = {}
    ports: dict[str, int] = {}
    """by name"""
    local: bool = False
    """whether its script names files that lie beside this one"""
    devices: int = 0
    """that it is given; 0: unknown"""
    published: tuple[tuple[int, int], ...] = ()
    """ports of its machine that lead to it: the first, and how many from it on"""
    files: dict[str, str] = {}
    """that were read for its variables, by name"""


def not_read(text: str) -> Remark:
    return Remark("not-understood", "", text)


def first_containers(found: Iterable[Container]) -> list[Container]:
    """As many as are read; the last of them says where there are more."""
    kept = list(islice(found, MAX_CONTAINERS + 1))
    if len(kept) > MAX_CONTAINERS:
        last = kept[MAX_CONTAINERS - 1]
        more = not_read(f"more than {MAX_CONTAINERS} containers: those behind this are not read")
        kept[-2:] = [msgspec.structs.replace(last, remarks=(*last.remarks, more))]
    return kept


def unread_variables(words: Sequence[str], names: Iterable[str]) -> Iterator[Remark]:
    """`$NAME` in a list of words that starts no shell."""
    if not any(word.rpartition("/")[2] in SHELLS for word in words[:2]):
        for name in names:
            text = f"${name} in a list: no shell is there to put its value in its place"
            yield Remark("variable-from-outside", "$" + name, text, severity="warning")


def image_release(image: str) -> str:
    """`lmsysorg/sglang:v0.5.10-cu130` is 0.5.10."""
    found = IMAGE.search(image)
    return found[1] if found else ""


def to_script(variables: Mapping[str, str], words: list[str]) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return exports + shlex.join(words) + "\n"


def shell_words(value: str) -> list[str]:
    """As a shell splits them. Raises ValueError."""
    if len(value) > MAX_SPLIT:
        raise ValueError(f"more than {MAX_SPLIT} characters")
    return shlex.split(value)


def split_words(value: str, place: Location) -> list[str]:
    """As a shell splits them. Raises ScriptError."""
    try:
        return shell_words(value)
    except ValueError as error:
        raise ScriptError(f"{place.file}: line {place.line}: {error}") from None


def in_container(within: Container, server: StartedServer, program: str) -> StartedServer:
    """The server, with what its container says of it."""
    ours = program not in VLLM
    chosen = flag_value(server.flags, "port") is not None
    known = (ours and program not in DYNAMO) or chosen  # vLLM's default is another
    return msgspec.structs.replace(
        server,
        devices=within.devices if ours else 0,  # Ray spreads vLLM's ranks
        network=within.network if known else "",
        names=within.names,
        closed=within.closed,
        published=within.published,
    )
