"""A script -> the commands it would start, with their environment and where they run."""

from __future__ import annotations

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from vivace.deploy.shell.interpreter import Interpreter, ScriptTooLarge
from vivace.deploy.shell.state import Assumption, Launch, Note, ScriptState
from vivace.deploy.shell.statements import STATEMENTS
from vivace.deploy.shell.words import line_of, to_parser
from vivace.errors import CannotStart

MAX_BYTES = 1 << 20


class ScriptError(CannotStart):
    """The script cannot be followed at all; the text says why."""


class Reading(msgspec.Struct, frozen=True):
    """`launches` in the order of their lines; one for each place where a command runs."""

    launches: tuple[Launch, ...]
    notes: tuple[Note, ...]


def read_script(content: str) -> Reading:
    """Nothing is executed, opened or looked up. Raises ScriptError for a script that is too large
    or branches too often; lines that are not understood become notes."""
    raw = to_parser(content.replace("\r\n", "\n"))
    if len(raw) > MAX_BYTES:
        raise ScriptError(f"{len(raw)} bytes: at most {MAX_BYTES} are read")
    tree = Parser(Language(tree_sitter_bash.language())).parse(raw)
    interpreter = Interpreter(STATEMENTS)
    try:
        states = interpreter.block(tree.root_node.named_children, [ScriptState()])
    except ScriptTooLarge as error:
        raise ScriptError(str(error)) from None
    except RecursionError:
        raise ScriptError("nested too deeply") from None
    notes = sorted([*interpreter.notes, *missing(tree.root_node)], key=lambda note: note.line)
    return Reading(unique(states), tuple(notes))


def missing(root: Node) -> list[Note]:
    """Tokens that the parser had to add, as a missing `fi`."""
    found: list[Note] = []
    waiting = [root] if root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.is_missing:
            found.append(Note(line_of(node), f"syntax error: {node.type!r} is missing"))
        waiting += [child for child in node.children if child.has_error or child.is_missing]
    return found


def unique(states: list[ScriptState]) -> tuple[Launch, ...]:
    """One launch for a command that several branches have in common."""
    found: dict[tuple[object, ...], Launch] = {}
    for state in states:
        for launch in state.launches:
            key = (launch.line, launch.words, tuple(launch.environment.items()), launch.behind)
            before = found.get(key)
            kept = launch.assumptions if before is None else common(before, launch)
            found[key] = msgspec.structs.replace(launch, assumptions=kept)
    return tuple(sorted(found.values(), key=lambda launch: launch.line))


def common(first: Launch, second: Launch) -> tuple[Assumption, ...]:
    """None where one of them needs none, or where they need the opposite. Of two ways to ask
    the same (either address of a machine) the first is kept."""
    if not second.assumptions:
        return ()
    other = {each.origin: each.value for each in second.assumptions}
    return tuple(
        each for each in first.assumptions if other.get(each.origin, each.value) == each.value
    )
