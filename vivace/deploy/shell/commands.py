"""Simple commands: launches, preparation, function calls, exits and jumps."""

from __future__ import annotations

from collections.abc import Sequence

from tree_sitter import Node

from vivace.deploy.shell.interpreter import Interpreter
from vivace.deploy.shell.state import Launch, ScriptState, States, Value
from vivace.deploy.shell.text import EMPTY, Text, display, known, text
from vivace.deploy.shell.words import array_words, line_of, source, text_of, words_of

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
"""commands without effect on later launches"""
WRAPPERS = {"nohup": 0, "exec": 0, "time": 0, "sudo": 0, "env": 0, "setsid": 0, "stdbuf": 1}
"""commands that run the rest of their words -> how many arguments of their own they have"""
SERVERS = ("launch_server", "launch_router", "vivace serve", "api_server")
"""commands that do not return"""


def value_of(node: Node | None, state: ScriptState) -> Value:
    if node is None:
        return EMPTY
    if node.type == "array":
        return [word for child in node.named_children for word in words_of(child, state)]
    many = array_words(node, state)
    if many is not None:
        return text(" ".join(display(word) for word in many))
    return text_of(node, state)


def command(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    prefix: dict[str, Text] = {}
    words: list[Text] = []
    for child in node.named_children:
        if child.type == "variable_assignment":
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if name is not None:
                result = value_of(value, state)
                prefix[source(name)] = EMPTY if isinstance(result, list) else result
        elif child.type == "command_name":
            words += words_of(child.named_children[0], state) if child.named_children else []
        elif child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            words += words_of(child, state)
    return run(shell, node, state, words, prefix, background)


def run(
    shell: Interpreter,
    node: Node,
    state: ScriptState,
    words: list[Text],
    prefix: dict[str, Text],
    background: bool,
) -> States:
    program = known(words[0]) if words else ""
    if program in ("break", "continue", "return", "exit"):
        state.ended = state.ended or program == "exit"
        state.leaves = "" if program == "exit" else program
        return [state]
    if program in shell.functions:
        return call(shell, shell.functions[program], state, words[1:])
    if program in SILENT or not words:
        return [state]
    if program in WRAPPERS:
        return run(shell, node, state, *unwrapped(words, prefix), background)
    environment = state.environment() | {name: display(value) for name, value in prefix.items()}
    plain = tuple(display(word) for word in words)
    line = line_of(node)
    launch = Launch(
        plain,
        environment,
        line,
        background,
        state.assumptions,
        state.serving,
        tuple(sorted(state.unset)),
    )
    state.launches.append(launch)
    if not background and serves(plain):
        state.serving = line
    return [state]


def unwrapped(words: list[Text], prefix: dict[str, Text]) -> tuple[list[Text], dict[str, Text]]:
    """The words after nohup, env A=1 and the like."""
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


def call(shell: Interpreter, body: Node, state: ScriptState, arguments: list[Text]) -> States:
    before = {str(index): state.variables.get(str(index)) for index in range(1, 10)}
    for index, argument in enumerate(arguments[:9], 1):
        state.assign(str(index), argument)
    states = caught(shell.block(body.named_children, [state]), "return")
    for each in states:
        for name, value in before.items():
            if value is None:
                each.variables.pop(name, None)
            else:
                each.variables[name] = value
    return states


def caught(states: States, leaves: str) -> States:
    for state in states:
        if state.leaves == leaves:
            state.leaves = ""
    return states
