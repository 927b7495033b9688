"""systemd units -> the command that each starts, as a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from vivace.deploy.files import file_name
from vivace.deploy.from_script.container import Container, first_containers, split_words, to_script
from vivace.deploy.from_script.flags import Remark
from vivace.deploy.locations import Location
from vivace.deploy.shell.interpreter import Follow
from vivace.deploy.shell.reader import ScriptError
from vivace.deploy.shell.strings import variables_in
from vivace.errors import nearest

MAX_SETTINGS = 4096
MAX_REJOINED = 1 << 14
"""characters"""
SETTING = re.compile(r"\s*([A-Za-z]\w*)\s*=\s*(.*)", re.DOTALL)
PREFIXES = "@-:+!|"
VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
SPECIFIER = re.compile(r"%(.)")
NOT_READ = ("LoadCredential", "PassEnvironment")
READ = ("Environment", "ExecStart", "EnvironmentFile", *NOT_READ)


def services_in(file: str, content: str, follow: Follow) -> list[Container]:
    """Of a unit or a part of one; files of variables are read that lie beside it, also those that
    will lie elsewhere by that name. Raises ScriptError."""
    variables, from_files, files = dict[str, str](), dict[str, str](), dict[str, str]()
    started: list[tuple[str, Location]] = []
    remarks: list[Remark] = []
    for section, name, value, place in settings(file, content):
        if section != "Service":
            continue
        if not name:
            text = f"{value[:80]!r} belongs to no setting: systemd ignores it"
            rule = "broken-line" if value.startswith("-") else "not-understood"
            remarks.append(Remark(rule, "", text, file, place.line, place.end))
            if rule == "broken-line" and started:
                started[-1] = rejoined(started[-1], value, place)
        elif name not in READ and (near := nearest(name, READ, 0.9)):
            text = f"{name} is no setting, systemd ignores it{near}"
            remarks.append(Remark("not-understood", "", text, file, place.line, place.end))
        elif name == "Environment":
            variables.update(assignments(value, place)) if value else variables.clear()
        elif name == "ExecStart":
            started.append((value, place)) if value else started.clear()
        elif name == "EnvironmentFile" and not value:
            from_files.clear()
        elif name == "EnvironmentFile" and (opened := open_file(value, follow)):
            files[opened[0]] = opened[1]
            from_files |= variables_in(opened[1])
        elif name in (*NOT_READ, "EnvironmentFile") and value:
            text = f"{name}={value[:120]} is not read: what it sets is unknown"
            remarks.append(Remark("not-understood", "", text, file, place.line, place.end))
    return first_containers(
        Container(
            script=to_script(variables | from_files, []) + command(value, place),
            place=place,
            pod=index,
            contained=False,
            machine=file,
            remarks=tuple(remarks),
            files=files,
        )
        for index, (value, place) in enumerate(started)
    )


def rejoined(started: tuple[str, Location], value: str, place: Location) -> tuple[str, Location]:
    """With the line behind it that a lost backslash cut off."""
    before, own = started
    if own.end + 1 != place.line or len(before) > MAX_REJOINED:
        return started
    return f"{before} {value}", Location(own.file, own.line, place.end)


def settings(file: str, content: str) -> Iterator[tuple[str, str, str, Location]]:
    """(section, name, value, its lines); no name for what is no setting. A backslash at the end
    joins lines, comments between them are left out."""
    section, parts, start, count = "", list[str](), 0, 0
    for number, line in enumerate([*content.splitlines(), ""], 1):
        if line.lstrip().startswith(("#", ";")):
            continue
        start = start if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        whole, parts = " ".join([*parts, line]).strip(), []
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
        elif whole:
            count += 1
            if count > MAX_SETTINGS:
                raise ScriptError(f"{file}: line {number}: more than {MAX_SETTINGS} settings")
            found = SETTING.fullmatch(whole)
            name, value = (found[1], found[2].strip()) if found else ("", whole)
            yield section, name, value, Location(file, start, number)


def open_file(value: str, follow: Follow) -> tuple[str, str] | None:
    """(path, text); a dash in front says that it may be missing."""
    path = value.removeprefix("-")
    return follow(path) or follow(file_name(path))


def assignments(value: str, place: Location) -> dict[str, str]:
    """A=1 "B=2 3" of Environment=."""
    pairs = (word.partition("=") for word in split_words(value, place))
    return {name: specified(text) for name, equals, text in pairs if equals and name.isidentifier()}


def command(value: str, place: Location) -> str:
    """The line of ExecStart= as one of bash: `$NAME` alone is words, in a word it is text."""
    bare = value.lstrip(PREFIXES)
    prefixes = value[: len(value) - len(bare)]
    words = split_words(bare, place)
    if "@" in prefixes:  # the second word is only the program's name for itself
        words = [*words[:1], *words[2:]]
    plain = shlex.quote if ":" in prefixes else expanded
    return " ".join(plain(specified(word)) for word in words) + "\n"


def specified(text: str) -> str:
    """`%i` and the like are known when the unit is started."""
    return SPECIFIER.sub(lambda found: "%" if found[1] == "%" else f"<{found[0]}>", text)


def expanded(word: str) -> str:
    alone = VARIABLE.fullmatch(word)
    if alone is not None and alone[2]:
        return word
    pieces, at = list[str](), 0
    for found in VARIABLE.finditer(word):
        name = found[1] or found[2]
        pieces.append(shlex.quote(word[at : found.start()] + ("" if name else "$")))
        pieces.append(f'"${{{name}}}"' if name else "")
        at = found.end()
    return "".join(pieces) + (shlex.quote(word[at:]) if at < len(word) or not pieces else "")
