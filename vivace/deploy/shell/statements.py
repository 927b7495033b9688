"""Statements of bash, followed without running anything."""

from __future__ import annotations

from tree_sitter import Node

from vivace.deploy.shell.commands import caught, command, value_of
from vivace.deploy.shell.conditions import branches
from vivace.deploy.shell.interpreter import MAX_ITERATIONS, Handler, Interpreter, ScriptTooLarge
from vivace.deploy.shell.state import ScriptState, States, Value
from vivace.deploy.shell.text import EMPTY, joined, known
from vivace.deploy.shell.words import (
    NotUnderstood,
    integer,
    line_of,
    source,
    text_of,
    words_of,
)


def nothing(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    return [state]


def broken(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """A syntax error; statements inside it are still followed."""
    shell.note(node, "syntax error")
    inner = [child for child in node.named_children if child.type in shell.handlers]
    return shell.block(inner, [state])


def assignment(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None:
        raise NotUnderstood("an assignment without a name")
    result = value_of(value, state)
    appended = any(child.type == "+=" for child in node.children)
    if name.type == "subscript":
        assign_element(name, result, state)
    elif appended:
        state.assign(source(name), appended_to(state.variables.get(source(name)), result))
    else:
        state.assign(source(name), result)
    return [state]


def appended_to(before: Value | None, more: Value) -> Value:
    if isinstance(before, list) or isinstance(more, list):
        start = before if isinstance(before, list) else [] if before is None else [before]
        return [*start, *(more if isinstance(more, list) else [more])]
    return joined(before or EMPTY, more)


def assign_element(name: Node, value: Value, state: ScriptState) -> None:
    target, index = name.child_by_field_name("name"), name.child_by_field_name("index")
    where = None if index is None else integer(known(text_of(index, state)))
    fits = where is not None and 0 <= where < MAX_ITERATIONS
    if target is None or where is None or not fits or isinstance(value, list):
        raise NotUnderstood(f"assignment to {source(name)}")
    elements = list(state.elements(source(target)) or [])
    elements += [EMPTY] * (where + 1 - len(elements))
    elements[where] = value
    state.assign(source(target), elements)


def assignments(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    for child in node.named_children:
        assignment(shell, child, state, background)
    return [state]


def declaration(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """export, declare, local, readonly"""
    exports = node.children[0].type == "export"
    for child in node.named_children:
        if child.type == "variable_assignment":
            assignment(shell, child, state, background)
            name = child.child_by_field_name("name")
            if exports and name is not None:
                state.exported.add(source(name))
        elif child.type == "variable_name" and exports:
            state.exported.add(source(child))
        elif child.type == "word" and source(child) == "-x":
            exports = True
    return [state]


def unset(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    for child in node.named_children:
        if child.type == "variable_name":
            state.forget(source(child))
    return [state]


def for_loop(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if name is None or body is None or node.children[0].type != "for":
        raise NotUnderstood("a loop that is no `for` over words")
    values = [
        word for child in node.children_by_field_name("value") for word in words_of(child, state)
    ]
    if len(values) > MAX_ITERATIONS:
        raise ScriptTooLarge(f"line {line_of(node)}: a loop of {len(values)} rounds")
    states = [state]
    for value in values:
        going = [each for each in states if each.runs]
        for each in going:
            each.assign(source(name), value)
        states = [each for each in states if not each.runs]
        states += shell.block(body.named_children, going)
        for each in states:
            if each.leaves == "continue":
                each.leaves = ""
    return caught(states, "break")


def if_statement(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """Branches in order: (condition or None, statements)."""
    found: States = []
    undecided = [state]
    for condition, statements in clauses(node):
        entering: States = []
        still: States = []
        for each in undecided:
            if condition is None:
                entering.append(each)
                continue
            for branch, value in branches(condition, each):
                (entering if value else still).append(branch)
        found += shell.block(statements, entering)
        undecided = still
    return [*found, *undecided]


def clauses(node: Node) -> list[tuple[Node | None, list[Node]]]:
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


def case_statement(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    subject = node.child_by_field_name("value")
    value = None if subject is None else known(text_of(subject, state))
    if value is None:
        raise NotUnderstood("case of what only the machine knows")
    for item in node.named_children:
        if item.type != "case_item":
            continue
        patterns = item.children_by_field_name("value")
        if any(source(pattern) == "*" or matches(pattern, value, state) for pattern in patterns):
            statements = [child for child in item.named_children if child not in patterns]
            return shell.block(statements, [state])
    return [state]


def matches(pattern: Node, value: str, state: ScriptState) -> bool:
    return known(text_of(pattern, state)) == value


def compound(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    return shell.block(node.named_children, [state])


def subshell(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """Its variables are local; its launches count."""
    inner = shell.block(node.named_children, [state.copy()])
    state.launches = [launch for each in inner for launch in each.launches]
    return [state]


def function(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        shell.functions[source(name)] = body
    return [state]


def chain(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """a && b, a || b: tests are evaluated, commands are assumed to succeed."""
    first, second = node.named_children[0], node.named_children[-1]
    succeeds = any(child.type == "&&" for child in node.children)
    if first.type in ("test_command", "negated_command"):
        found: States = []
        for branch, value in branches(first, state):
            found += shell.block([second], [branch]) if value is succeeds else [branch]
        return found
    states = shell.statement(first, [state])
    return (
        shell.statement(second, [w for w in states if w.runs], background)
        + [w for w in states if not w.runs]
        if succeeds
        else states
    )


def pipeline(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """`server | tee log`: the first command counts."""
    first = node.named_children[0]
    return shell.statement(first, [state], background)


def redirected(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    body = node.child_by_field_name("body")
    return [state] if body is None else shell.statement(body, [state], background)


def while_loop(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """Loops that only wait are skipped; others are reported as not followed."""
    body = node.child_by_field_name("body")
    if body is not None and any(child.type in CHANGING for child in body.named_children):
        shell.note(node, "a loop that is not followed")
    return [state]


CHANGING = {"variable_assignment", "declaration_command", "if_statement", "for_statement"}


STATEMENTS: dict[str, Handler] = {
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
