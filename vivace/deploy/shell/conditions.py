"""Conditions of `if` and `&&`: true, false, or both if the value is unknown."""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from vivace.deploy.shell.state import Assumption, ScriptState
from vivace.deploy.shell.strings import combine
from vivace.deploy.shell.text import Text, known_text, only_unknown
from vivace.deploy.shell.words import NotUnderstood, expand_compared, integer, number, source

Branches = list[tuple[ScriptState, bool]]
"""states and what the condition is in each"""
Condition = Callable[[Node, ScriptState], Branches]
EQUAL, DIFFERENT = ("==", "=", "-eq"), ("!=", "-ne")
NUMERIC = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def branches(condition: Node, state: ScriptState) -> Branches:
    """Splits the state where the condition is unknown. Raises NotUnderstood."""
    if condition.type == "test_command" and condition.named_child_count == 1:
        inner = condition.named_child(0)
        return [] if inner is None else test(inner, state)
    if condition.type == "negated_command" and condition.named_child_count == 1:
        inner = condition.named_child(0)
        found = [] if inner is None else branches(inner, state)
        return [(each, not value) for each, value in found]
    if condition.type == "list":
        return both(condition.named_children, find_operator(condition), state, branches)
    if condition.type == "compound_statement" and source(condition).startswith("(("):
        inner = condition.named_child(0)
        value = None if inner is None else number(inner, state, 0)
        return split_by(source(condition), state) if value is None else [(state, bool(value))]
    if condition.type == "command" and source(condition) in ("true", ":", "false"):
        return [(state, source(condition) != "false")]
    return split_by(source(condition), state)


def test(node: Node, state: ScriptState) -> Branches:
    """The expression in [[ ]] or [ ]."""
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        inner = node.named_child(0)
        return [] if inner is None else test(inner, state)
    if node.type == "unary_expression":
        return unary(node, state)
    if node.type == "binary_expression":
        operator = find_operator(node)
        if operator in ("&&", "||", "-a", "-o"):
            sides = [node.child_by_field_name("left"), node.child_by_field_name("right")]
            meaning = {"-a": "&&", "-o": "||"}.get(operator, operator)
            return both([side for side in sides if side is not None], meaning, state, test)
        return comparison(node, operator, state)
    value = known_text(expand_compared(node, state))
    return split_by(source(node), state) if value is None else [(state, value != "")]


def both(
    sides: list[Node],
    operator: str,
    state: ScriptState,
    judge: Condition,
) -> Branches:
    """`&&` and `||`: the right side only where the left does not decide."""
    if len(sides) != 2:
        raise NotUnderstood("a condition with more than two sides")
    found: Branches = []
    for each, value in judge(sides[0], state):
        if value is (operator == "||"):
            found.append((each, value))
        else:
            found += judge(sides[1], each)
    return found


def unary(node: Node, state: ScriptState) -> Branches:
    children = node.children
    operator, operand = source(children[0]), children[-1]
    if operator == "!":
        return [(each, not value) for each, value in test(operand, state)]
    if operator in ("-z", "-n"):
        value = known_text(expand_compared(operand, state))
        if value is not None:
            return [(state, (value == "") is (operator == "-z"))]
    return split_by(source(node), state)


def comparison(node: Node, operator: str, state: ScriptState) -> Branches:
    sides = node.child_by_field_name("left"), node.child_by_field_name("right")
    if sides[0] is None or sides[1] is None:
        raise NotUnderstood(f"comparison {source(node)}")
    left, right = expand_compared(sides[0], state), expand_compared(sides[1], state)
    plain = known_text(left), known_text(right)
    if plain[0] is not None and plain[1] is not None:
        return [(state, compare(operator, plain[0], plain[1], source(node)))]
    if operator in (*EQUAL, *DIFFERENT):
        return equality(left, right, operator in EQUAL, state, source(node))
    return split_by(source(node), state)


def compare(operator: str, left: str, right: str, origin: str) -> bool:
    if operator in NUMERIC:
        value = combine(NUMERIC[operator], integer(left), integer(right))
        if value is None:
            raise NotUnderstood(f"comparison {origin}")
        return bool(value)
    if operator in ("==", "=", "!="):
        if "*" in right or "?" in right:
            raise NotUnderstood(f"pattern in {origin}")
        return (left == right) is (operator != "!=")
    if operator in ("<", ">"):
        return left < right if operator == "<" else left > right
    raise NotUnderstood(f"comparison {origin}")


def equality(left: Text, right: Text, equal: bool, state: ScriptState, origin: str) -> Branches:
    """An unknown against a known text: one state where it is that text, one where it is not."""
    variable, value = only_unknown(left), known_text(right)
    if variable is None or value is None:
        variable, value = only_unknown(right), known_text(left)
    if variable is None or value is None:
        return split_by(origin, state)
    decided = state.assumed(variable, value)
    if decided is not None:
        return [(state, decided is equal)]
    same, other = state.copy(), state.copy()
    same.assumptions = (*same.assumptions, Assumption(variable.origin, value))
    other.differs = other.differs | {(variable.origin, value)}
    return [(same, equal), (other, not equal)]


def split_by(origin: str, state: ScriptState) -> Branches:
    """Both branches, unless it was decided before."""
    short = " ".join(origin.split())
    for assumption in state.assumptions:
        if assumption.origin == short:
            return [(state, assumption.value == "true")]
    yes, no = state.copy(), state.copy()
    yes.assumptions = (*yes.assumptions, Assumption(short, "true"))
    no.assumptions = (*no.assumptions, Assumption(short, "false"))
    return [(yes, True), (no, False)]


def find_operator(node: Node) -> str:
    found = node.child_by_field_name("operator")
    if found is not None:
        return source(found)
    return next((child.type for child in node.children if child.type in ("&&", "||")), "")
