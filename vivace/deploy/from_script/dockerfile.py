"""Dockerfiles -> what a container of each stage starts by itself, as a script."""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping

import msgspec

from vivace.deploy.from_script.container import (
    USED,
    Container,
    image_release,
    split_words,
    to_script,
    unread_variables,
)
from vivace.deploy.from_script.flags import Remark
from vivace.deploy.from_script.roles import TargetPort
from vivace.deploy.from_script.target_ports import URL
from vivace.deploy.locations import Location
from vivace.deploy.shell.reader import ScriptError
from vivace.deploy.shell.wrappers import program_of_image

MAX_TEXT = 1 << 16
"""characters of a value with what is expanded in it"""
MAX_VARIABLES = 1 << 17
"""characters of the variables of a stage"""
MAX_COPIED = 4096
"""files of a stage, and characters of a path"""
MAX_STAGES = 128
MAX_INSTRUCTIONS = 4096
INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
DIRECTIVE = re.compile(r"#\s*escape\s*=\s*`\s*", re.IGNORECASE)
HEREDOC = re.compile(r"(?<!\S)\d*<<-?[\"']?([A-Za-z_]\w*)")
"""a word of its own, as BuildKit reads it: no here-string, no shift of a number"""
VARIABLE = re.compile(r"\\\$|\$(?:\{([A-Za-z_]\w*)(?::([-+])([^{}]*))?\}|([A-Za-z_]\w*))")
WITH_HEREDOCS = ("RUN", "COPY", "ADD")


class ImageCommand(msgspec.Struct, frozen=True):
    """`words` in the form of a list; else `text`, which /bin/sh reads."""

    place: Location
    words: tuple[str, ...] = ()
    text: str = ""


class ImageStage(msgspec.Struct):
    """Since one FROM; `copied`: by its place in the image a file beside the Dockerfile."""

    image: str = ""
    environment: dict[str, str] = {}
    arguments: dict[str, str] = {}
    variables: int = 0
    """characters of these two"""
    copied: dict[str, str] = {}
    folder: str = "/"
    entry: ImageCommand | None = None
    command: ImageCommand | None = None
    own: bool = False
    """whether it says what is started, and did not only take it over"""
    remarks: list[Remark] = []
    target_ports: tuple[TargetPort, ...] = ()
    """by its health check"""


def stages_in(file: str, content: str) -> list[Container]:
    """Of every stage that says what it starts. Raises ScriptError."""
    outer: dict[str, str] = {}
    stages: list[ImageStage] = []
    names: dict[str, ImageStage] = {}
    for name, rest, place in instructions(file, content):
        if name == "FROM":
            if len(stages) >= MAX_STAGES:
                raise ScriptError(f"{file}: line {place.line}: more than {MAX_STAGES} stages")
            stages.append(begin(rest, outer, names, place))
        elif not stages:
            if name == "ARG":
                outer |= arguments(rest, lambda _, text, at=place: expand(text, {}, at), {}, place)
        elif name in READERS:
            READERS[name](stages[-1], rest, place, outer)
    return [container(each, file) for each in stages if each.own]


def instructions(file: str, content: str) -> Iterator[tuple[str, str, Location]]:
    """(name, what follows it, its lines). Lines that end with the escape character go on; comments
    and empty lines between them are left out, and what is between <<EOF and EOF."""
    lines = content.splitlines()
    escape = "`" if lines and DIRECTIVE.fullmatch(lines[0]) else "\\"
    parts, start, closing, count = list[str](), 0, list[str](), 0
    for number, line in enumerate([*lines, ""], 1):
        if closing:
            if line.strip() == closing[0]:
                closing.pop(0)
            continue
        if line.lstrip().startswith("#") or (parts and not line.strip() and number <= len(lines)):
            continue
        start = start if parts else number
        if line.rstrip().endswith(escape):
            parts.append(line.rstrip()[:-1])
            continue
        whole, parts = "\n".join([*parts, line]), []
        found = INSTRUCTION.fullmatch(whole)
        if found is None:
            continue
        count += 1
        if count > MAX_INSTRUCTIONS:
            text = f"more than {MAX_INSTRUCTIONS} instructions"
            raise ScriptError(f"{file}: line {number}: {text}")
        name = found[1].upper()
        if name in WITH_HEREDOCS:
            closing = HEREDOC.findall(found[2])
        joined = " ".join(each.strip() for each in found[2].split("\n"))
        yield name, joined.strip(), Location(file, start, number)


def begin(
    rest: str, outer: Mapping[str, str], names: dict[str, ImageStage], place: Location
) -> ImageStage:
    """`FROM image AS name`: an image, or a stage before, whose settings hold on."""
    words = [word for word in rest.split() if not word.startswith("--")]
    image = expand(words[0], outer, place) if words else ""
    base = names.get(image.lower())
    made = ImageStage(image=image)
    if base is not None:
        made = msgspec.structs.replace(
            base, arguments={}, own=False, environment=dict(base.environment),
            copied=dict(base.copied), remarks=list(base.remarks),
        )  # fmt: skip
    if len(words) > 2 and words[1].lower() == "as":
        names[words[2].lower()] = made
    return made


def read_env(stage: ImageStage, rest: str, place: Location, outer: Mapping[str, str]) -> None:
    """ENV A=1 B="2 3", or ENV A 1."""
    first, blank, value = rest.partition(" ")
    pairs = [first + "=" + value] if blank and "=" not in first else split_words(rest, place)
    split = (pair.partition("=") for pair in pairs)
    stage.environment |= {
        name: variable(stage, name, text, place)
        for name, equals, text in split
        if equals and name.isidentifier()
    }


def read_arg(stage: ImageStage, rest: str, place: Location, outer: Mapping[str, str]) -> None:
    stage.arguments |= arguments(
        rest, lambda name, text: variable(stage, name, text, place), outer, place
    )


def arguments(
    rest: str, value: Callable[[str, str], str], outer: Mapping[str, str], place: Location
) -> dict[str, str]:
    """ARG NAME=default; without a default that of before the first FROM, else unknown."""
    found: dict[str, str] = {}
    for pair in split_words(rest, place):
        name, equals, text = pair.partition("=")
        if name.isidentifier():
            found[name] = value(name, text) if equals else outer.get(name, f"<${name}>")
    return found


def variable(stage: ImageStage, name: str, text: str, place: Location) -> str:
    """Its value, with those of before the instruction. Raises ScriptError."""
    value = expand(text, ChainMap(stage.environment, stage.arguments), place)
    stage.variables += len(name) + len(value)
    if stage.variables > MAX_VARIABLES:
        text = f"variables of more than {MAX_VARIABLES} characters"
        raise ScriptError(f"{place.file}: line {place.line}: {text}")
    return value


def read_copy(stage: ImageStage, rest: str, place: Location, outer: Mapping[str, str]) -> None:
    if "--from=" in rest or "<<" in rest:
        return
    words = [word.strip("[],\"'") for word in rest.split()]
    words = [word for word in words if word and not word.startswith("--")]
    if len(words) < 2:
        return
    if len(stage.copied) + len(words) > MAX_COPIED or len(stage.folder + words[-1]) > MAX_COPIED:
        raise ScriptError(f"{place.file}: line {place.line}: more than {MAX_COPIED} files copied")
    to = words[-1] if words[-1].startswith("/") else stage.folder.rstrip("/") + "/" + words[-1]
    for source in words[:-1]:
        name = source.removeprefix("./")
        last = name.rpartition("/")[2]
        at = to.removesuffix(".").removesuffix("/")
        stage.copied[at + "/" + last] = stage.copied[to] = name


def read_folder(stage: ImageStage, rest: str, place: Location, outer: Mapping[str, str]) -> None:
    stage.folder = rest if rest.startswith("/") else stage.folder.rstrip("/") + "/" + rest


def read_entry(stage: ImageStage, rest: str, place: Location, outer: Mapping[str, str]) -> None:
    stage.entry, stage.command, stage.own = command(stage, rest, place), None, True


def read_command(stage: ImageStage, rest: str, place: Location, outer: Mapping[str, str]) -> None:
    stage.command, stage.own = command(stage, rest, place), True


def read_check(stage: ImageStage, rest: str, place: Location, outer: Mapping[str, str]) -> None:
    ports = dict.fromkeys(map(int, URL.findall(rest)))
    stage.target_ports = tuple(TargetPort("the HEALTHCHECK", port, (), place) for port in ports)


READERS = {
    "HEALTHCHECK": read_check,
    "ENV": read_env,
    "ARG": read_arg,
    "COPY": read_copy,
    "ADD": read_copy,
    "WORKDIR": read_folder,
    "ENTRYPOINT": read_entry,
    "CMD": read_command,
}


def command(stage: ImageStage, rest: str, place: Location) -> ImageCommand:
    """A list of JSON, or a line of the shell; of a list that is not JSON what was meant."""
    if not rest.startswith("["):
        return ImageCommand(place, text=rest)
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        words = None
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return ImageCommand(place, words=tuple(words))
    text = "a list that is not JSON (words in double quotes): Docker has the shell run it as it is"
    stage.remarks.append(Remark("not-understood", "", text, place.file, place.line, place.end))
    meant = split_words(rest.strip("[]").replace(",", " "), place)
    return ImageCommand(place, words=tuple(meant))


def container(stage: ImageStage, file: str) -> Container:
    entry, given = stage.entry, stage.command
    parts = [each for each in (entry, given) if each is not None]
    if entry is not None and entry.text:
        parts = [entry]  # the shell form leaves CMD out
    words = [word for each in parts for word in as_words(each)]
    words = [*program_of_image(stage.image, next(iter(words), None)), *words]
    words = [stage.copied.get(word, word) for word in words]
    places = [each.place for each in parts]
    place = Location(file, min(each.line for each in places), max(each.end for each in places))
    network = f"{file}:{place.line}"
    return Container(
        script=to_script(stage.environment, words),
        place=place,
        remarks=(*stage.remarks, *unset(stage, parts)),
        release=image_release(stage.image),
        network=network,
        target_ports=tuple(
            msgspec.structs.replace(each, networks=(network,)) for each in stage.target_ports
        ),
        local=True,
    )


def as_words(part: ImageCommand) -> list[str]:
    return ["/bin/sh", "-c", part.text] if part.text else list(part.words)


def unset(stage: ImageStage, parts: list[ImageCommand]) -> Iterator[Remark]:
    """What is there only while the image is built, and variables where no shell reads them."""
    for part in parts:
        used = dict.fromkeys(USED.findall(part.text or " ".join(part.words)))
        gone = [each for each in used if each in stage.arguments.keys() - stage.environment.keys()]
        for name in gone:
            text = f"${name} is an ARG, which is gone when the container runs: ENV keeps it"
            yield Remark("variable-from-outside", "$" + name, text, severity="warning")
        if any(USED.match(word) for word in part.words):
            yield from unread_variables(part.words, (each for each in used if each not in gone))


def expand(text: str, known: Mapping[str, str], place: Location) -> str:
    """$NAME, ${NAME:-default} and ${NAME:+other}. Raises ScriptError."""
    used = sum(len(known.get(found[1] or found[4] or "", "")) for found in VARIABLE.finditer(text))
    if len(text) + used > MAX_TEXT:
        raise ScriptError(f"{place.file}: line {place.line}: more than {MAX_TEXT} characters")

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[4]
        if name is None:
            return "$"
        if found[2] == "-":
            return known.get(name) or found[3]
        if found[2] == "+":
            return found[3] if known.get(name) else ""
        return known.get(name, f"<${name}>")

    return VARIABLE.sub(value, text)
