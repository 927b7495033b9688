"""Statements of bash, followed without running anything."""

from __future__ import annotations

from tree_sitter import Node

from vivace.deploy.shell.builtins import BUILTINS
from vivace.deploy.shell.commands import (
    add_launch,
    command,
    expand_value,
    here_string,
    inner_placement,
)
from vivace.deploy.shell.conditions import Branches, branches, equality, split_by
from vivace.deploy.shell.interpreter import MAX_ITERATIONS, Handler, Interpreter
from vivace.deploy.shell.loops import SERVING, counted_loop, for_loop, while_loop
from vivace.deploy.shell.state import ScriptState, States, Value, merge_results
from vivace.deploy.shell.strings import NotUnderstood, fnmatch, integer
from vivace.deploy.shell.text import (
    EMPTY,
    Text,
    concatenate,
    display,
    join_script,
    known_text,
    text,
)
from vivace.deploy.shell.words import (
    expand_compared,
    expand_text,
    expand_words,
    follow_assignment,
    output,
    source,
)
from vivace.deploy.shell.wrappers import SHELLS, unwrap

PASSING = frozenset("tee grep egrep awk sed cat head tail less wc sort".split())
"""ends of pipelines that start nothing, whatever they name"""


def skip(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
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
    result = expand_value(value, state)
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
    return concatenate(before or EMPTY, more)


def assign_element(name: Node, value: Value, state: ScriptState) -> None:
    target, index = name.child_by_field_name("name"), name.child_by_field_name("index")
    where = None if index is None else integer(known_text(expand_text(index, state)))
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


BLANKS = "not understood: with a blank beside its `=` bash gives the variable nothing"


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
        elif child.type in ("word", "number") and not source(child).startswith("-"):
            shell.note(node, BLANKS)
    return [state]


def unset(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    for child in node.named_children:
        if child.type == "variable_name":
            state.forget(source(child))
    return [state]


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
    """One item; all of them where only the machine knows the value."""
    subject = node.child_by_field_name("value")
    value = EMPTY if subject is None else expand_compared(subject, state)
    found: States = []
    undecided = [state]
    for item in node.named_children:
        if item.type != "case_item":
            continue
        patterns = item.children_by_field_name("value")
        statements = [child for child in item.named_children if child not in patterns]
        for pattern in patterns:
            still: States = []
            for each in undecided:
                for branch, same in match_pattern(pattern, value, each):
                    if same:
                        found += shell.block(statements, [branch])
                    else:
                        still.append(branch)
            undecided = still
    return [*found, *undecided]


def match_pattern(pattern: Node, value: Text, state: ScriptState) -> Branches:
    wanted, plain = known_text(expand_text(pattern, state)), known_text(value)
    if wanted == "*":
        return [(state, True)]
    if wanted is None or set("*?[") & set(wanted):
        if plain is None or wanted is None:
            return split_by(f"{display(value)} is {source(pattern)}", state)
        return [(state, fnmatch(plain, wanted))]
    if plain is not None:
        return [(state, plain == wanted)]
    return equality(value, text(wanted), True, state, f"{display(value)} is {wanted}")


def compound(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    return shell.block(node.named_children, [state])


def arithmetic(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """((i++))"""
    if not follow_assignment(node, state):
        raise NotUnderstood(f"arithmetic {source(node)}")
    return [state]


def subshell(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """Its variables are local; its launches count."""
    return merge_results(state, shell.block(node.named_children, [state.copy()]))


def function(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        shell.functions[source(name)] = body
    return [state]


def chain(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """a && b, a || b"""
    first, second = node.named_children[0], node.named_children[-1]
    found: States = []
    for after, value in outcomes(shell, first, state):
        goes_on = after.runs and value is ("&&" in [each.type for each in node.children])
        found += shell.statement(second, [after], background) if goes_on else [after]
    return found


def outcomes(shell: Interpreter, node: Node, state: ScriptState) -> Branches:
    """(state, whether it succeeds): tests are evaluated, commands are assumed to succeed."""
    if node.type in ("test_command", "negated_command"):
        return branches(node, state)
    if node.type != "list":
        return [(after, source(node) != "false") for after in shell.statement(node, [state])]
    found: Branches = []
    for after, value in outcomes(shell, node.named_children[0], state):
        goes_on = after.runs and value is ("&&" in [each.type for each in node.children])
        found += outcomes(shell, node.named_children[-1], after) if goes_on else [(after, value)]
    return found


def pipeline(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """`server | tee log`: the first command counts, and the last where it reads lines or starts a
    server; `echo value | tee /sys/..` is preparation."""
    first, last = node.named_children[0], node.named_children[-1]
    words = plain_words(node)
    if words[0] in ("echo", "printf") and "tee" in source(last):
        shell_words = [text(word) for word in words]
        return add_launch(shell, node, state, shell_words, {}, background)
    if words[0] in ("echo", "printf", "cat") and plain_words(last)[0] in SHELLS:
        raise NotUnderstood("a script from a pipe")
    reads = last.type == "while_statement"
    if reads or (SERVING.search(source(last)) and plain_words(last)[0] not in PASSING):
        states = [state.copy()] if reads else shell.statement(first, [state.copy()], background)
        for each in states:
            each.given = output(first, state) if node.named_child_count == 2 else None
        return merge_results(state, shell.statement(last, states, background))
    return shell.statement(first, [state], background)


def run_redirected(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    """`bash <<EOF` runs the text, `cat > file <<EOF` keeps it for a later `bash file`."""
    body = node.child_by_field_name("body")
    document = next((each for each in node.children if each.type == "heredoc_redirect"), None)
    if body is None:
        return [state]
    target = next((each for each in node.children if each.type == "file_redirect"), None)
    if body.type != "command" or plain_words(body)[0] in BUILTINS:
        return with_input(shell, node, body, state, background)
    if document is None:
        if body.type == "command" and plain_words(body)[0] == "echo" and "> /" in source(node):
            words = [text(word) for word in source(node).split()]
            return add_launch(shell, node, state, words, {}, background)
        return shell.statement(body, [state], background)
    content, above = document_in(document, state), shell.above + document.start_point[0] + 1
    words = plain_words(body) if body.type == "command" else [""]
    if words[0] in SHELLS:
        return merge_results(state, shell.nested(content, above, state.exported_only()))
    if words[0] in ("ssh", "docker", "kubectl"):
        return remote(shell, body, state, content, above, background)
    if words[0] == "cat" and target is not None and target.named_child_count:
        name = display(expand_text(target.named_children[-1], state)).removeprefix("./")
        shell.written[name] = content, above
        return [state]
    return shell.statement(body, [state], background)


def with_input(
    shell: Interpreter, node: Node, body: Node, state: ScriptState, background: bool
) -> States:
    """`while read .. done < file`, `mapfile < <(command)`, `{ .. } <<EOF`"""
    outer = state.given
    for each in node.children:
        if each.type == "heredoc_redirect":
            state.given = document_in(each, state)
        elif each.type == "herestring_redirect":
            state.given = here_string(each, state)
        elif each.type == "file_redirect" and "<" in [part.type for part in each.children]:
            state.given = read_input(each.named_children[-1], state)
    ended = shell.statement(body, [state], background)
    for each in ended:
        each.given = outer
    return ended


def read_input(source_node: Node, state: ScriptState) -> str | None:
    """The text behind `<`, where the file or what a command prints is known."""
    if source_node.type == "process_substitution":
        return output(source_node.named_children[0], state) if source_node.named_children else None
    return state.opened((known_text(expand_text(source_node, state)) or "").removeprefix("./"))


def plain_words(node: Node) -> list[str]:
    """The text of a node in words, at least one: what Python takes for a blank may be a word."""
    return source(node).split() or [""]


def document_in(document: Node, state: ScriptState) -> str:
    """The text of a here-document, expanded unless its delimiter is quoted."""
    start = next((each for each in document.children if each.type == "heredoc_start"), None)
    body = next((each for each in document.children if each.type == "heredoc_body"), None)
    if body is None:
        return ""
    if start is None or source(start)[:1] in ("'", '"', "\\"):
        return source(body)
    return join_script([expand_text(body, state)])


def remote(
    shell: Interpreter, node: Node, state: ScriptState, content: str, above: int, background: bool
) -> States:
    """`ssh host bash <<EOF`"""
    words = [word for child in node.named_children for word in command_words(child, state)]
    inner = unwrap(words)
    if inner is None:
        return shell.statement(node, [state], background)
    begun = state.copy()
    begun.variables, begun.exported = {}, set()
    begun.placement = inner_placement(inner, state.placement)
    return merge_results(state, shell.nested(content, above, begun))


def command_words(node: Node, state: ScriptState) -> list[Text]:
    inner = node.named_child(0) if node.type == "command_name" else node
    return [] if inner is None else expand_words(inner, state)


STATEMENTS: dict[str, Handler] = {
    "comment": skip,
    "ERROR": broken,
    "variable_assignment": assignment,
    "variable_assignments": assignments,
    "declaration_command": declaration,
    "unset_command": unset,
    "for_statement": for_loop,
    "c_style_for_statement": counted_loop,
    "if_statement": if_statement,
    "case_statement": case_statement,
    "while_statement": while_loop,
    "compound_statement": compound,
    "postfix_expression": arithmetic,
    "unary_expression": arithmetic,
    "binary_expression": arithmetic,
    "do_group": compound,
    "subshell": subshell,
    "function_definition": function,
    "list": chain,
    "pipeline": pipeline,
    "redirected_statement": run_redirected,
    "command": command,
    "test_command": skip,
    "heredoc_body": skip,
}
