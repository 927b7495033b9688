"""Simple commands: what is launched, what only prepares, what ends a course of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tree_sitter import Node

from vivace.deploy.shell.text import EMPTY, Text, known, shown, text
from vivace.deploy.shell.words import array_words, line_of, source, text_of, words_of
from vivace.deploy.shell.world import Launch, Value, World

if TYPE_CHECKING:
    from vivace.deploy.shell.statements import Walk

SILENT = {
    "echo",
    "printf",
    "cd",
    "set",
    "shopt",
    "true",
    ":",
    "sleep",
    "wait",
    "mkdir",
}
"""commands that change nothing a launch depends on"""
WRAPPERS = {"nohup": 0, "exec": 0, "time": 0, "sudo": 0, "env": 0, "setsid": 0, "stdbuf": 1}
"""commands that run the rest of their words -> how many of those are their own"""
SERVERS = ("launch_server", "launch_router", "vivace serve", "api_server")
"""what does not come back by itself"""

Worlds = list[World]


def value_of(node: Node | None, world: World) -> Value:
    if node is None:
        return EMPTY
    if node.type == "array":
        return [word for child in node.named_children for word in words_of(child, world)]
    many = array_words(node, world)
    if many is not None:
        return text(" ".join(shown(word) for word in many))
    return text_of(node, world)


def command(walk: Walk, node: Node, world: World, background: bool) -> Worlds:
    prefix: dict[str, Text] = {}
    words: list[Text] = []
    for child in node.named_children:
        if child.type == "variable_assignment":
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if name is not None:
                result = value_of(value, world)
                prefix[source(name)] = EMPTY if isinstance(result, list) else result
        elif child.type == "command_name":
            words += words_of(child.named_children[0], world) if child.named_children else []
        elif child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            words += words_of(child, world)
    return run(walk, node, world, words, prefix, background)


def run(
    walk: Walk,
    node: Node,
    world: World,
    words: list[Text],
    prefix: dict[str, Text],
    background: bool,
) -> Worlds:
    program = known(words[0]) if words else ""
    if program in ("break", "continue", "return", "exit"):
        world.ended = world.ended or program == "exit"
        world.leaves = "" if program == "exit" else program
        return [world]
    if program in walk.functions:
        return call(walk, walk.functions[program], world, words[1:])
    if program in SILENT or not words:
        return [world]
    if program in WRAPPERS:
        return run(walk, node, world, *unwrapped(words, prefix), background)
    environment = world.environment() | {name: shown(value) for name, value in prefix.items()}
    plain = tuple(shown(word) for word in words)
    line = line_of(node)
    launch = Launch(
        plain,
        environment,
        line,
        background,
        world.assumptions,
        world.serving,
        tuple(sorted(world.unset)),
    )
    world.launches.append(launch)
    if not background and serves(plain):
        world.serving = line
    return [world]


def unwrapped(words: list[Text], prefix: dict[str, Text]) -> tuple[list[Text], dict[str, Text]]:
    """The words behind nohup, env A=1 and the like."""
    own = WRAPPERS[known(words[0]) or ""]
    rest, prefix = words[1 + own :], dict(prefix)
    while rest and (first := known(rest[0])) is not None:
        name, equals, value = first.partition("=")
        if not equals or not name.isidentifier():
            break
        prefix[name], rest = text(value), rest[1:]
    return rest, prefix


def serves(words: Sequence[str]) -> bool:
    line = " ".join(words)
    return any(server in line for server in SERVERS)


def call(walk: Walk, body: Node, world: World, arguments: list[Text]) -> Worlds:
    before = {str(index): world.variables.get(str(index)) for index in range(1, 10)}
    for index, argument in enumerate(arguments[:9], 1):
        world.assign(str(index), argument)
    worlds = caught(walk.block(body.named_children, [world]), "return")
    for each in worlds:
        for name, value in before.items():
            if value is None:
                each.variables.pop(name, None)
            else:
                each.variables[name] = value
    return worlds


def caught(worlds: Worlds, leaves: str) -> Worlds:
    for world in worlds:
        if world.leaves == leaves:
            world.leaves = ""
    return worlds
