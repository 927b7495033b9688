"""What local names of a function stand for, while its source is read."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from condition_algebra import FALSE, LARGEST, Condition, all_of, any_of, flat, negated, size

MOST_CHOICES = 8
"""of a name; one that has more is unknown"""


@dataclass(frozen=True)
class Choice:
    """What a local name stands for where `conditions` hold; `place`: where it was written."""

    node: ast.expr
    place: Place
    conditions: tuple[Condition, ...] = ()

    @property
    def condition(self) -> Condition:
        return all_of(list(self.conditions))

    @property
    def key(self) -> tuple[int, str]:
        """The same for what is the same value."""
        constant = isinstance(self.node, ast.Constant)
        return 0 if constant else id(self.place), ast.dump(self.node)

    def under(self, condition: Condition) -> Choice:
        return replace(self, conditions=tuple(flat(all_of([condition, *self.conditions]))))


@dataclass(frozen=True)
class Place:
    """Where the reader is: names that stand for the arguments, other local names, imports, and
    the conditions; `within`: the functions it is in."""

    module: str
    records: frozenset[str]
    conditions: tuple[Condition, ...] = ()
    imports: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    names: dict[str, tuple[Choice, ...]] = field(default_factory=dict[str, tuple[Choice, ...]])
    within: tuple[str, ...] = ()
    declares: bool = False
    """in a pass: the mapping that it returns is what it changes"""

    def under(self, condition: Condition) -> Place | None:
        """None where it cannot hold."""
        found = all_of([*self.conditions, condition])
        return None if found == FALSE else replace(self, conditions=tuple(flat(found)))


def with_names(place: Place, bound: Mapping[str, tuple[Choice, ...]]) -> Place:
    found = {
        name: overlaid(name, place.names.get(name, ()), choices) for name, choices in bound.items()
    }
    return replace(place, names=place.names | found) if found else place


def unknown(name: str) -> Choice:
    """Nothing that can be looked up."""
    return Choice(ast.Name(name, ast.Load()), Place("", frozenset()))


def overlaid(name: str, old: Sequence[Choice], new: Sequence[Choice]) -> tuple[Choice, ...]:
    """Choices of a name that was bound again: the old ones where no new one holds."""
    kept: list[Choice] = []
    for each in old:
        others = [other.condition for other in new if other.key != each.key]
        kept.append(each.under(negated(any_of(others))))
    found: dict[tuple[int, str], Choice] = {}
    for each in (*kept, *new):
        if each.condition == FALSE:
            continue
        known = found.get(each.key)
        if known is not None:
            asked = any_of([known.condition, each.condition])
            each = replace(each, conditions=tuple(flat(asked)))
        found[each.key] = each
    simple = all(size(each.condition) <= 2 * LARGEST for each in found.values())
    return tuple(found.values()) if simple and len(found) <= MOST_CHOICES else (unknown(name),)


def defaults_of(spec: ast.arguments) -> dict[str, ast.expr]:
    parameters = [each.arg for each in (*spec.posonlyargs, *spec.args)]
    found = dict(zip(reversed(parameters), reversed(spec.defaults), strict=False))
    pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return found | {each.arg: default for each, default in pairs if default is not None}


def unpacked(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr | None]]:
    """(name, what it becomes) of an assignment; None where that is not written out."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if not isinstance(target, ast.Tuple):
        return []
    alike = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
    values = value.elts if alike and isinstance(value, ast.Tuple) else [None] * len(target.elts)
    pairs = zip(target.elts, values, strict=True)
    return [(each.id, found) for each, found in pairs if isinstance(each, ast.Name)]


def stored(node: ast.AST) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []


def leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
