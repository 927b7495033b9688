"""Loops of bash: over words, counted, and those that wait or restart a server."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from tree_sitter import Node

from vivace.deploy.shell.builtins import BUILTINS, forget, separators_in
from vivace.deploy.shell.commands import caught, command_parts
from vivace.deploy.shell.conditions import Branches, branches
from vivace.deploy.shell.interpreter import MAX_ITERATIONS, Interpreter, ScriptTooLarge
from vivace.deploy.shell.state import Launch, ScriptState, States
from vivace.deploy.shell.text import Text, known_text, only_unknown, unknown
from vivace.deploy.shell.words import (
    EXPANSIONS,
    NotUnderstood,
    expand_words,
    follow_assignment,
    number,
    source,
)

Step = Callable[[ScriptState], bool]
"""what comes between two rounds; False: it cannot be followed"""
ENDING = re.compile(r"(?<![\w-])(wait|kill|pkill|killall|fuser|srun|ssh|break|exit|return|docker|"
                    r"kubectl|\w*(?:stop|kill|clean|shutdown|terminate)\w*)(?![\w-])")  # fmt: skip
"""in a loop's body: words that end a server, or start it elsewhere"""
SERVING = re.compile(r"launch_server|launch_router|\b(?:vivace|sglang|vllm) serve\b")
SPREADING = ("mpirun", "srun", "ray", "pdsh", "salloc")
CHANGING = {
    "variable_assignment",
    "declaration_command",
    "if_statement",
    "for_statement",
    "case_statement",
}
STEPPED = re.compile(r"\$\(\([^()]*(?:\+\+|--|[^=<>!]=[^=])")
"""arithmetic that assigns"""
WAITS = ("sleep", "curl", "nc", "echo", "printf", "wait", "date", "grep", "kill", ":", "ps", "tail")
"""commands of loops that only wait"""


def for_loop(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if name is None or body is None or node.children[0].type != "for":
        raise NotUnderstood("a loop that is no `for` over words")
    values = [
        word
        for child in node.children_by_field_name("value")
        for word in expand_words(child, state)
    ]
    if "in" not in [child.type for child in node.children]:
        values = state.elements("@") or []
    if len(values) > MAX_ITERATIONS:
        raise ScriptTooLarge(f"line {shell.line(node)}: a loop of {len(values)} rounds")
    states = [state]
    if len(values) == 1 and is_list(node) and (variable := only_unknown(values[0])) is not None:
        state.assign(source(name), values[0])
        word = unknown(f"the next of {variable.origin}")
        return caught(
            repeated(shell, body, states, lambda each: take(source(name), word, each)), "break"
        )
    for value in values:
        going = [each for each in states if each.runs]
        if not going:
            break
        for each in going:
            each.assign(source(name), value)
        states = [*(each for each in states if not each.runs), *once(shell, body, going)]
    return caught(states, "break")


def is_list(loop: Node) -> bool:
    """Whether its only word is an expansion that may be many."""
    words = loop.children_by_field_name("value")
    return len(words) == 1 and words[0].type in ("simple_expansion", *EXPANSIONS)


def take(name: str, value: Text, state: ScriptState) -> bool:
    state.assign(name, value)
    return True


def repeated(shell: Interpreter, body: Node, states: States, step: Step) -> States:
    """One round, whose servers in the background know how the next round starts them, if nothing
    ends them before."""
    before = [(each.launches, each.assumptions) for each in states]
    ended = once(shell, body, [each.copy() for each in states])
    if len(ended) != 1 or len(states) != 1 or not ended[0].runs or ENDING.search(source(body)):
        return ended
    (count, assumptions), (after,) = (len(before[0][0]), before[0][1]), ended
    following = after.copy()
    following.launches = list(before[0][0])
    if after.assumptions != assumptions or not step(following):
        return ended
    second = once(shell, body, [following])
    if len(second) == 1 and len(second[0].launches) == len(after.launches):
        after.launches[count:] = [
            msgspec.structs.replace(one, again=other.words) if beside(one, other) else one
            for one, other in zip(after.launches[count:], second[0].launches[count:], strict=True)
        ]
    return ended


def beside(one: Launch, other: Launch) -> bool:
    """Whether the second starts on the machine of the first, which goes on."""
    same = (one.line, one.file, one.placement) == (other.line, other.file, other.placement)
    own = "<" not in one.placement.host and not one.placement.contained
    return same and own and one.background and not one.placement.tasks and not spread(one)


def spread(launch: Launch) -> bool:
    """Whether a scheduler chooses the machine."""
    return launch.words[0].rpartition("/")[2] in SPREADING


def once(shell: Interpreter, body: Node, states: States) -> States:
    """One round."""
    return caught(shell.block(body.named_children, states), "continue")


def counted_loop(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """for ((i = 0; i < 4; i++))"""
    parts = [child for child in node.named_children if child.type != "do_group"]
    body = node.child_by_field_name("body")
    if len(parts) != 3 or body is None or not follow_assignment(parts[0], state):
        raise NotUnderstood(f"a loop {source(node).split(chr(10))[0]}")
    states = [state]
    for _ in range(MAX_ITERATIONS):
        entered = [(each, number(parts[1], each, 0)) for each in states if each.runs]
        if any(value is None for _, value in entered):
            return run_undecided(
                shell, node, body, states, lambda each: follow_assignment(parts[2], each)
            )
        going = [each for each, value in entered if value]
        if not going:
            return caught(states, "break")
        resting = [each for each in states if not any(each is other for other in going)]
        ended = once(shell, body, going)
        for each in ended:
            if each.runs and not follow_assignment(parts[2], each):
                raise NotUnderstood(f"the step of a loop: {source(parts[2])}")
        states = [*resting, *ended]
    raise ScriptTooLarge(f"line {shell.line(node)}: a loop of more than {MAX_ITERATIONS} rounds")


def while_loop(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """while and until. One that a known value decides is followed. Others are gone through once if
    they start something; what they change is unknown behind them."""
    body, condition = node.child_by_field_name("body"), node.child_by_field_name("condition")
    if body is None or condition is None:
        raise NotUnderstood("a loop without a condition")
    until = node.children[0].type == "until"
    if "$#" in source(condition):  # options of the script: none are given
        given = state.elements("@")
        if given and None not in map(known_text, given):
            return rounds(shell, node, condition, body, state, until)
        forget(assigned_names(body) if given else [], state)
        return [state]
    if condition.type == "list" and plain_name(condition.named_children[0]) == "read":
        condition = condition.named_children[0]  # `|| [ -n "$line" ]`: a last line without an end
    reads = condition.type == "command" and plain_name(condition) == "read"
    if reads and state.given is not None:
        return rounds(shell, node, condition, body, state, until)
    if reads and (changes(body) or SERVING.search(source(body))):
        read_line(shell, condition, state)
        return run_undecided(
            shell, node, body, [state], lambda each: read_line(shell, condition, each)
        )
    endless = source(condition).strip() in (("false",) if until else ("true", ":", "1"))
    if endless or not changes(body):
        if not endless and only_waits(body):
            return [state]
        return caught(once(shell, body, [state]), "break")
    return rounds(shell, node, condition, body, state, until)


def plain_name(command: Node) -> str:
    name = next((each for each in command.named_children if each.type == "command_name"), None)
    return "" if name is None else source(name)


def read_line(shell: Interpreter, condition: Node, state: ScriptState) -> bool:
    words, prefix = command_parts(condition, state)
    return BUILTINS["read"](shell, state, words[1:], separators_in(prefix, state))


def judged(shell: Interpreter, condition: Node, state: ScriptState) -> Branches:
    if condition.type == "command" and plain_name(condition) == "read":
        return [(state, read_line(shell, condition, state))]
    return branches(condition, state)


def rounds(
    shell: Interpreter, node: Node, condition: Node, body: Node, state: ScriptState, until: bool
) -> States:
    states = [state]
    for _ in range(MAX_ITERATIONS):
        going = [each for each in states if each.runs]
        if not going:
            return caught(states, "break")
        decided = [judged(shell, condition, each) for each in going]
        if any(len(found) != 1 for found in decided):
            return run_undecided(shell, node, body, states, lambda state: True)
        entering = [each for found in decided for each, value in found if value is not until]
        leaving = [each for each in going if not any(each is other for other in entering)]
        for each in leaving:
            each.leaves = "break"
        resting = [each for each in states if not any(each is other for other in entering)]
        states = [*resting, *once(shell, body, entering)]
    raise ScriptTooLarge(f"line {shell.line(node)}: a loop of more than {MAX_ITERATIONS} rounds")


def run_undecided(shell: Interpreter, node: Node, body: Node, states: States, step: Step) -> States:
    """How often it goes round only the machine knows."""
    shell.note(node, "a loop that is not followed to its end")
    ended = caught(repeated(shell, body, states, step), "break")
    for each in ended:
        forget(assigned_names(body), each)
    return ended


def assigned_names(body: Node) -> list[str]:
    found: list[str] = []
    waiting = [body]
    while waiting:
        node = waiting.pop()
        name = node.child_by_field_name("name") if node.type == "variable_assignment" else None
        if name is not None and name.type == "variable_name":
            found.append(source(name))
        if is_assigning(node):
            found += re.findall(r"(?<![\w$-])[A-Za-z_]\w*", source(node))[1:]
        waiting += node.named_children
    return found


def changes(body: Node) -> bool:
    return any(
        child.type in CHANGING or child.type.endswith("_expression") or is_assigning(child)
        or (child.type == "compound_statement" and source(child).startswith("(("))
        for child in body.named_children
    ) or bool(STEPPED.search(source(body)))  # fmt: skip


def is_assigning(node: Node) -> bool:
    """A builtin that does."""
    name = plain_name(node) if node.type == "command" else ""
    return name in BUILTINS and (name != "printf" or " -v " in source(node))


def only_waits(body: Node) -> bool:
    return all(
        child.type in ("comment", "test_command")
        or source(child).lstrip("! ").split(" ", 1)[0] in WAITS
        for child in body.named_children
    )
