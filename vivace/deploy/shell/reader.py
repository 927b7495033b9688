"""A script -> the commands it would start, with their environment and where they run."""

from __future__ import annotations

import re

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from vivace.deploy.shell.interpreter import Follow, Interpreter, ScriptTooLarge
from vivace.deploy.shell.placeholders import with_tokens
from vivace.deploy.shell.state import Assumption, Launch, Note, ScriptState
from vivace.deploy.shell.statements import STATEMENTS
from vivace.deploy.shell.words import line_number, to_parser
from vivace.errors import CannotStart

MAX_BYTES = 1 << 20
NODES = re.compile(r"--nnodes(?!\w)")


class ScriptError(CannotStart):
    """The script cannot be followed at all; the text says why."""


class Reading(msgspec.Struct, frozen=True):
    """`launches` in the order of their lines; one for each place where a command runs."""

    launches: tuple[Launch, ...]
    notes: tuple[Note, ...]
    variables: tuple[str, ...] = ()
    """names that the script sets"""
    files: dict[str, str] = {}
    """the files that it sources"""


def no_file(path: str) -> tuple[str, str] | None:
    """Nothing that is sourced is followed."""
    return None


def read_script(content: str, follow: Follow = no_file) -> Reading:
    """Nothing is executed; only `follow` opens files. Raises ScriptError for a script that is too
    large or branches too often; lines that are not understood become notes."""
    if len(content) > MAX_BYTES:
        raise ScriptError(f"{len(content)} characters: at most {MAX_BYTES} bytes are read")
    interpreter = Interpreter(STATEMENTS, parse_script, follow)
    try:
        root = parse_script(content)
        states = interpreter.block(root.named_children, [ScriptState(opened=interpreter.opened)])
    except ScriptTooLarge as error:
        raise ScriptError(str(error)) from None
    except RecursionError:
        raise ScriptError("nested too deeply") from None
    notes = sorted(
        [*interpreter.notes, *find_missing(root)], key=lambda note: (note.file, note.line)
    )
    names = sorted({name for state in states for name in state.variables})
    return Reading(unique(states), tuple(notes), tuple(names), interpreter.files)


def parse_script(content: str) -> Node:
    """The syntax tree of a script. Raises ScriptTooLarge."""
    raw = to_parser(with_tokens(ended(content.replace("\r\n", "\n"))))
    if len(raw) > 4 * MAX_BYTES:
        raise ScriptTooLarge(f"{len(raw)} bytes: at most {MAX_BYTES} are read")
    return Parser(Language(tree_sitter_bash.language())).parse(raw).root_node


def ended(content: str) -> str:
    """A backslash that continues the last line continues it with nothing."""
    text = content.removesuffix("\n")
    odd = (len(text) - len(text.rstrip("\\"))) % 2
    return text[:-1] + "\n" if odd else content


def find_missing(root: Node) -> list[Note]:
    """Tokens that the parser had to add, as a missing `fi`."""
    found: list[Note] = []
    waiting = [root] if root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.is_missing:
            found.append(Note(line_number(node), f"syntax error: {node.type!r} is missing"))
        waiting += [child for child in node.children if child.has_error or child.is_missing]
    return found


def unique(states: list[ScriptState]) -> tuple[Launch, ...]:
    """One launch for a command that several branches have in common; one for each machine where
    all of them are named, and it is one of several nodes."""
    found: dict[tuple[object, ...], Launch] = {}
    alike: dict[tuple[object, ...], set[str]] = {}
    for state in states:
        for launch in state.launches:
            alike.setdefault(identity(launch), set()).add(launch.machine)
    for path, state in enumerate(states):
        for launch in state.launches:
            key = identity(launch)
            if "" not in alike[key] and any(map(NODES.match, launch.words)):
                key = (*key, launch.machine)
            before = found.get(key)
            kept = launch.assumptions if before is None else common(before, launch)
            paths = (path,) if before is None else (*before.paths, path)
            found[key] = msgspec.structs.replace(launch, assumptions=kept, paths=paths)
    return tuple(sorted(found.values(), key=lambda launch: launch.line))


def identity(launch: Launch) -> tuple[object, ...]:
    place = launch.file, launch.line, launch.round, launch.behind
    return (*place, launch.words, tuple(launch.environment.items()))


def common(first: Launch, second: Launch) -> tuple[Assumption, ...]:
    """What both need: nothing where one of them needs nothing or the opposite. Of two ways to ask
    the same (either address of a machine) the first is kept."""
    if not second.assumptions:
        return ()
    other = {each.origin: each.value for each in second.assumptions}
    return tuple(
        each for each in first.assumptions if other.get(each.origin, each.value) == each.value
    )
