"""Statements of bash, followed without running anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from tree_sitter import Node

from vivace.deploy.shell.commands import caught, command, value_of
from vivace.deploy.shell.conditions import ways
from vivace.deploy.shell.text import EMPTY, joined, known
from vivace.deploy.shell.words import (
    NotUnderstood,
    integer,
    line_of,
    source,
    text_of,
    words_of,
)
from vivace.deploy.shell.world import Note, Value, World

MOST_WORLDS = 128
MOST_STATEMENTS = 20_000
MOST_ROUNDS = 4_096
"""of one loop"""
DEEPEST = 100
"""nested statements"""
Worlds = list[World]


class TooLarge(Exception):
    """The script asks for more than is followed here; the text says for what."""


class Walk(msgspec.Struct):
    """Follows statements in every world. `notes` says what was not understood."""

    notes: list[Note] = []
    functions: dict[str, Node] = {}
    _statements: int = 0
    _depth: int = 0

    def block(self, statements: Sequence[Node], worlds: Worlds) -> Worlds:
        """Named children, one after the other; a `&` behind one puts it into the background."""
        for node in statements:
            behind = node.next_sibling
            background = behind is not None and behind.type == "&"
            going = [world for world in worlds if world.runs]
            resting = [world for world in worlds if not world.runs]
            if not going:
                return worlds
            worlds = [*resting, *self.statement(node, going, background)]
            if len(worlds) > MOST_WORLDS:
                raise TooLarge(f"line {line_of(node)}: more than {MOST_WORLDS} courses of events")
        return worlds

    def statement(self, node: Node, worlds: Worlds, background: bool = False) -> Worlds:
        self._statements += 1
        if self._statements > MOST_STATEMENTS:
            raise TooLarge(f"more than {MOST_STATEMENTS} statements")
        work = STATEMENTS.get(node.type)
        if work is None:
            self.note(node, f"not understood ({node.type.replace('_', ' ')})")
            return worlds
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooLarge(f"statements nested more than {DEEPEST} deep")
        found: Worlds = []
        for world in worlds:
            try:
                found += work(self, node, world, background)
            except NotUnderstood as error:
                self.note(node, f"not understood: {error}")
                found.append(world)
        self._depth -= 1
        return found

    def note(self, node: Node, why: str) -> None:
        first = source(node).split("\n", 1)[0].strip()
        found = Note(line_of(node), f"{why}: {first[:120]}")
        if found not in self.notes:
            self.notes.append(found)


def nothing(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    return [world]


def broken(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    """What the parser could not read; statements inside it are still followed."""
    walk.note(node, "syntax error")
    inner = [child for child in node.named_children if child.type in STATEMENTS]
    return walk.block(inner, [world])


def assignment(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None:
        raise NotUnderstood("an assignment without a name")
    result = value_of(value, world)
    appended = any(child.type == "+=" for child in node.children)
    if name.type == "subscript":
        assign_element(name, result, world)
    elif appended:
        world.assign(source(name), appended_to(world.variables.get(source(name)), result))
    else:
        world.assign(source(name), result)
    return [world]


def appended_to(before: Value | None, more: Value) -> Value:
    if isinstance(before, list) or isinstance(more, list):
        start = before if isinstance(before, list) else [] if before is None else [before]
        return [*start, *(more if isinstance(more, list) else [more])]
    return joined(before or EMPTY, more)


def assign_element(name: Node, value: Value, world: World) -> None:
    target, index = name.child_by_field_name("name"), name.child_by_field_name("index")
    where = None if index is None else integer(known(text_of(index, world)))
    if target is None or where is None or isinstance(value, list) or not 0 <= where < MOST_ROUNDS:
        raise NotUnderstood(f"assignment to {source(name)}")
    elements = list(world.elements(source(target)) or [])
    elements += [EMPTY] * (where + 1 - len(elements))
    elements[where] = value
    world.assign(source(target), elements)


def assignments(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    for child in node.named_children:
        assignment(walk, child, world, background)
    return [world]


def declaration(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    """export, declare, local, readonly"""
    exports = node.children[0].type == "export"
    for child in node.named_children:
        if child.type == "variable_assignment":
            assignment(walk, child, world, background)
            name = child.child_by_field_name("name")
            if exports and name is not None:
                world.exported.add(source(name))
        elif child.type == "variable_name" and exports:
            world.exported.add(source(child))
        elif child.type == "word" and source(child) == "-x":
            exports = True
    return [world]


def unset(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    for child in node.named_children:
        if child.type == "variable_name":
            world.forget(source(child))
    return [world]


def for_loop(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if name is None or body is None or node.children[0].type != "for":
        raise NotUnderstood("a loop that is no `for` over words")
    values = [
        word for child in node.children_by_field_name("value") for word in words_of(child, world)
    ]
    if len(values) > MOST_ROUNDS:
        raise TooLarge(f"line {line_of(node)}: a loop of {len(values)} rounds")
    worlds = [world]
    for value in values:
        going = [each for each in worlds if each.runs]
        for each in going:
            each.assign(source(name), value)
        worlds = [each for each in worlds if not each.runs]
        worlds += walk.block(body.named_children, going)
        for each in worlds:
            if each.leaves == "continue":
                each.leaves = ""
    return caught(worlds, "break")


def if_statement(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    """Branches in order: (condition or None, statements)."""
    found: Worlds = []
    undecided = [world]
    for condition, statements in branches(node):
        entering: Worlds = []
        still: Worlds = []
        for each in undecided:
            if condition is None:
                entering.append(each)
                continue
            for way, value in ways(condition, each):
                (entering if value else still).append(way)
        found += walk.block(statements, entering)
        undecided = still
    return [*found, *undecided]


def branches(node: Node) -> list[tuple[Node | None, list[Node]]]:
    conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
    if len(conditions) != 1:
        raise NotUnderstood("the condition of an if")
    rest = [child for child in node.named_children if child != conditions[0]]
    result: list[tuple[Node | None, list[Node]]] = []
    first = [child for child in rest if child.type not in ("elif_clause", "else_clause")]
    result.append((conditions[0], first))
    for child in rest:
        if child.type == "elif_clause":
            result.append((child.named_children[0], child.named_children[1:]))
        elif child.type == "else_clause":
            result.append((None, child.named_children))
    return result


def case_statement(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    subject = node.child_by_field_name("value")
    value = None if subject is None else known(text_of(subject, world))
    if value is None:
        raise NotUnderstood("case of what only the machine knows")
    for item in node.named_children:
        if item.type != "case_item":
            continue
        patterns = item.children_by_field_name("value")
        if any(source(pattern) == "*" or matches(pattern, value, world) for pattern in patterns):
            statements = [child for child in item.named_children if child not in patterns]
            return walk.block(statements, [world])
    return [world]


def matches(pattern: Node, value: str, world: World) -> bool:
    return known(text_of(pattern, world)) == value


def compound(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    return walk.block(node.named_children, [world])


def subshell(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    """Its variables are its own; what it launches counts."""
    inner = walk.block(node.named_children, [world.copy()])
    world.launches = [launch for each in inner for launch in each.launches]
    return [world]


def function(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        walk.functions[source(name)] = body
    return [world]


def chain(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    """a && b, a || b: a test decides; of a command success is assumed."""
    first, second = node.named_children[0], node.named_children[-1]
    succeeds = any(child.type == "&&" for child in node.children)
    if first.type in ("test_command", "negated_command"):
        found: Worlds = []
        for way, value in ways(first, world):
            found += walk.block([second], [way]) if value is succeeds else [way]
        return found
    worlds = walk.statement(first, [world])
    return (
        walk.statement(second, [w for w in worlds if w.runs], background)
        + [w for w in worlds if not w.runs]
        if succeeds
        else worlds
    )


def pipeline(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    """`server | tee log`: the first command counts."""
    first = node.named_children[0]
    return walk.statement(first, [world], background)


def redirected(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    body = node.child_by_field_name("body")
    return [world] if body is None else walk.statement(body, [world], background)


def while_loop(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    """Waiting loops change nothing; others are not followed."""
    body = node.child_by_field_name("body")
    if body is not None and any(child.type in CHANGING for child in body.named_children):
        walk.note(node, "a loop that is not followed")
    return [world]


CHANGING = {"variable_assignment", "declaration_command", "if_statement", "for_statement"}


STATEMENTS: dict[str, Callable[[Walk, Node, World, bool], Worlds]] = {
    "comment": nothing,
    "ERROR": broken,
    "variable_assignment": assignment,
    "variable_assignments": assignments,
    "declaration_command": declaration,
    "unset_command": unset,
    "for_statement": for_loop,
    "if_statement": if_statement,
    "case_statement": case_statement,
    "while_statement": while_loop,
    "compound_statement": compound,
    "do_group": compound,
    "subshell": subshell,
    "function_definition": function,
    "list": chain,
    "pipeline": pipeline,
    "redirected_statement": redirected,
    "command": command,
    "test_command": nothing,
    "heredoc_body": nothing,
}
