"""`if` and `while`: true, false, or both where only a machine knows."""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from vivace.deploy.shell.text import Text, known, only_unknown
from vivace.deploy.shell.words import NotUnderstood, combined, integer, source, text_of
from vivace.deploy.shell.world import Assumption, World

Ways = list[tuple[World, bool]]
"""worlds and what the condition is in each"""
EQUAL, DIFFERENT = ("==", "=", "-eq"), ("!=", "-ne")
NUMERIC = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def ways(condition: Node, world: World) -> Ways:
    """Splits the world where the condition is unknown. Raises NotUnderstood."""
    if condition.type == "test_command" and condition.named_child_count == 1:
        inner = condition.named_child(0)
        return [] if inner is None else test(inner, world)
    if condition.type == "negated_command" and condition.named_child_count == 1:
        inner = condition.named_child(0)
        return [] if inner is None else [(each, not value) for each, value in ways(inner, world)]
    if condition.type == "list":
        return both(condition.named_children, operator_of(condition), world, ways)
    if condition.type == "command" and source(condition) in ("true", ":", "false"):
        return [(world, source(condition) != "false")]
    return split_by(source(condition), world)


def test(node: Node, world: World) -> Ways:
    """What stands in [[ ]] or [ ]."""
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        inner = node.named_child(0)
        return [] if inner is None else test(inner, world)
    if node.type == "unary_expression":
        return unary(node, world)
    if node.type == "binary_expression":
        operator = operator_of(node)
        if operator in ("&&", "||", "-a", "-o"):
            sides = [node.child_by_field_name("left"), node.child_by_field_name("right")]
            meaning = {"-a": "&&", "-o": "||"}.get(operator, operator)
            return both([side for side in sides if side is not None], meaning, world, test)
        return comparison(node, operator, world)
    value = known(text_of(node, world))
    return split_by(source(node), world) if value is None else [(world, value != "")]


def both(
    sides: list[Node], operator: str, world: World, judge: Callable[[Node, World], Ways]
) -> Ways:
    """Left first; right only where left does not decide."""
    if len(sides) != 2:
        raise NotUnderstood("a condition with more than two sides")
    found: Ways = []
    for each, value in judge(sides[0], world):
        if value is (operator == "||"):
            found.append((each, value))
        else:
            found += judge(sides[1], each)
    return found


def unary(node: Node, world: World) -> Ways:
    children = node.children
    operator, operand = source(children[0]), children[-1]
    if operator == "!":
        return [(each, not value) for each, value in test(operand, world)]
    if operator in ("-z", "-n"):
        value = known(text_of(operand, world))
        if value is not None:
            return [(world, (value == "") is (operator == "-z"))]
    return split_by(source(node), world)


def comparison(node: Node, operator: str, world: World) -> Ways:
    sides = node.child_by_field_name("left"), node.child_by_field_name("right")
    if sides[0] is None or sides[1] is None:
        raise NotUnderstood(f"comparison {source(node)}")
    left, right = text_of(sides[0], world), text_of(sides[1], world)
    plain = known(left), known(right)
    if plain[0] is not None and plain[1] is not None:
        return [(world, compared(operator, plain[0], plain[1], source(node)))]
    if operator in (*EQUAL, *DIFFERENT):
        return equality(left, right, operator in EQUAL, world, source(node))
    return split_by(source(node), world)


def compared(operator: str, left: str, right: str, origin: str) -> bool:
    if operator in NUMERIC:
        value = combined(NUMERIC[operator], integer(left), integer(right))
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


def equality(left: Text, right: Text, equal: bool, world: World, origin: str) -> Ways:
    """An unknown against a known text: one world where it is that text, one where it is not."""
    asked, value = only_unknown(left), known(right)
    if asked is None or value is None:
        asked, value = only_unknown(right), known(left)
    if asked is None or value is None:
        return split_by(origin, world)
    decided = world.assumed(asked, value)
    if decided is not None:
        return [(world, decided is equal)]
    same, other = world.copy(), world.copy()
    same.assumptions = (*same.assumptions, Assumption(asked.origin, value))
    other.differs = other.differs | {(asked.origin, value)}
    return [(same, equal), (other, not equal)]


def split_by(origin: str, world: World) -> Ways:
    """Both ways, unless it was decided before."""
    short = " ".join(origin.split())
    for assumption in world.assumptions:
        if assumption.origin == short:
            return [(world, assumption.value == "true")]
    yes, no = world.copy(), world.copy()
    yes.assumptions = (*yes.assumptions, Assumption(short, "true"))
    no.assumptions = (*no.assumptions, Assumption(short, "false"))
    return [(yes, True), (no, False)]


def operator_of(node: Node) -> str:
    found = node.child_by_field_name("operator")
    if found is not None:
        return source(found)
    return next((child.type for child in node.children if child.type in ("&&", "||")), "")
