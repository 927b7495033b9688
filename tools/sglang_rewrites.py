"""What one release of SGLang makes of its arguments at start-up, read from its source.

An assignment to a field is followed from `ServerArgs.__post_init__` (or the pipeline of hooks that
replaced it), and from what is registered for architectures of models, with the conditions on its
way. What a condition asks beyond arguments, platform and model is kept as it is written there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from condition_algebra import Condition, has_opaque, negated, opaque
from local_names import Choice, Place, leaves, stored, unknown
from sglang_conditions import ConditionReader
from sglang_flags import ARGS, plain
from source_constants import UNKNOWN, Function, imported

DISPATCHING = ("__post_init__", "resolve_once", "run_resolution_pipeline")
"""functions that only put the steps in order"""
REGISTERED = ("_register_for", "register_model_override")
PREDICATE = "register_model_override_predicate"
CONSTANT = "MODEL_OVERRIDES"
GROUPS = "sglang/srt/arg_groups/"
ARCHITECTURE = ast.parse("hf_config.architectures[0]", mode="eval").body
DECLARE = "declare_resolution"


@dataclass(frozen=True)
class Rewrite:
    """`value`: what the field becomes; `formula`: how it is computed where it is no constant,
    from fields alone, or "? " and its source; `conditions`: all of them hold
    (condition_algebra.py)."""

    name: str
    value: Any
    formula: str
    conditions: list[Condition]


class RewriteReader(ConditionReader):
    def rewrites(self) -> list[Rewrite]:
        found: dict[str, Rewrite] = {}
        for each in (*self.started(), *self.registered()):
            found.setdefault(repr(each), each)
        return list(found.values())

    def started(self) -> Iterator[Rewrite]:
        for start in ("__post_init__", "resolve_once"):
            if start in self.methods:
                place = Place(ARGS, frozenset({"self"}), within=(start,))
                yield from self.body(self.methods[start].body, place)

    def registered(self) -> Iterator[Rewrite]:
        """What modules register for architectures."""
        for path in self.package.files:
            if not path.startswith(GROUPS) or not path.endswith(".py"):
                continue
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            bound = self.package.bindings(module)
            outer = Place(module, frozenset())
            constant = bound.get(CONSTANT)
            if isinstance(constant, ast.Dict):
                for key, value in zip(constant.keys, constant.values, strict=True):
                    name = self.package.value(key, module)
                    inside = outer.under(["arch", [name]])
                    if inside is not None:
                        yield from self.declared(value, replace(inside, declares=True))
            for node in bound.values():
                if isinstance(node, ast.FunctionDef):
                    yield from self.provider(node, outer)

    def provider(self, node: ast.FunctionDef, outer: Place) -> Iterator[Rewrite]:
        """A function that is registered for architectures."""
        for mark in node.decorator_list:
            if not isinstance(mark, ast.Call):
                continue
            name = ast.unparse(mark.func).rpartition(".")[2]
            condition: Condition | None = None
            if name in REGISTERED:
                listed = self.package.value(ast.List(mark.args), outer.module)
                condition = None if listed is UNKNOWN else ["arch", sorted(set(listed))]
            elif name == PREDICATE and isinstance(mark.args[0], ast.Lambda):
                asked = mark.args[0]
                names = {asked.args.args[0].arg: (Choice(ARCHITECTURE, outer),)}
                condition = self.condition(asked.body, replace(outer, names=names))
            inside = None if condition is None else outer.under(condition)
            if inside is not None:
                records = frozenset({node.args.args[0].arg})
                within = (f"{outer.module}.{node.name}",)
                here = replace(inside, records=records, within=within, declares=True)
                yield from self.body(node.body, here)

    def body(self, statements: Sequence[ast.stmt], place: Place) -> Iterator[Rewrite]:
        for node in statements:
            place = with_imports(node, place)
            yield from self.statement(node, place)
            behind: Place | None = self.bound(node, place)
            if isinstance(node, ast.If):
                condition = self.condition(node.test, place)
                if leaves(node.body):
                    behind = self.after(negated(condition), node.body, behind)
                elif node.orelse and leaves(node.orelse):
                    behind = self.after(condition, node.orelse, behind)
            if behind is None:
                return
            place = behind

    def after(self, condition: Condition, left: Sequence[ast.stmt], place: Place) -> Place | None:
        """Behind a branch that is left. A server that starts has left none by raising, and not the
        functions that only put the steps in order."""
        if isinstance(left[-1], ast.Raise):
            return place
        ordering = place.within[-1].rpartition(".")[2] in DISPATCHING
        return place if ordering and has_opaque(condition) else place.under(condition)

    def statement(self, node: ast.stmt, place: Place) -> Iterator[Rewrite]:
        if isinstance(node, ast.If):
            condition = self.condition(node.test, place)
            for asked, body in ((condition, node.body), (negated(condition), node.orelse)):
                if inside := place.under(asked):
                    yield from self.body(body, inside)
        elif isinstance(node, ast.With | ast.Try):
            yield from self.body(node.body, place)
        elif isinstance(node, ast.For):
            for inside in self.turns(node.target, node.iter, place):
                yield from self.body(node.body, inside)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from self.assigned(target, node.value, place)
            yield from self.declared(node.value, place)
        elif isinstance(node, ast.AugAssign):
            if name := self.field_of(node.target, place):
                yield from self.rewrite(name, ast.BinOp(node.target, node.op, node.value), place)
        elif isinstance(node, ast.Return):
            yield from self.declared(node.value, place)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self.call(node.value, place)

    def turns(self, target: ast.expr, items: ast.expr, place: Place) -> Iterator[Place]:
        """Of a loop over what is written out: one place for each; else one, with names unknown."""
        items, _ = self.single(items, place)
        listed = items.elts if isinstance(items, ast.Tuple | ast.List) else None
        if listed is None or not isinstance(target, ast.Name):
            names = {name: (unknown(name),) for each in ast.walk(target) for name in stored(each)}
            yield replace(place, names=place.names | names)
            return
        for each in listed:
            yield replace(place, names={**place.names, target.id: (Choice(each, place),)})

    def assigned(self, target: ast.expr, value: ast.expr, place: Place) -> Iterator[Rewrite]:
        if isinstance(target, ast.Tuple):
            alike = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            values = value.elts if alike and isinstance(value, ast.Tuple) else None
            for at, each in enumerate(target.elts):
                yield from self.assigned(each, values[at] if values else value, place)
        elif name := self.target_field(target, place) or self.entry(target, place):
            yield from self.rewrite(name, value, place)

    def target_field(self, node: ast.expr, place: Place) -> str:
        return self.field_of(node, place) if isinstance(node, ast.Attribute) else ""

    def entry(self, node: ast.expr, place: Place) -> str:
        """The field in `declared["field"] = ..` of a pass."""
        if not place.declares or not isinstance(node, ast.Subscript):
            return ""
        return self.name_of(node.slice, place)

    def name_of(self, node: ast.expr | None, place: Place) -> str:
        """The field that a key of a mapping names."""
        key = None if node is None else self.value(node, place)
        return key if isinstance(key, str) and key in self.fields else ""

    def declared(self, node: ast.expr | None, place: Place) -> Iterator[Rewrite]:
        """A pass's mapping, where it is written out, or made by another function."""
        if isinstance(node, ast.Call):
            yield from self.call(node, place)
        elif not place.declares:
            return
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from self.declared(value, place)
                elif name := self.name_of(key, place):
                    yield from self.rewrite(name, value, place)
        elif isinstance(node, ast.DictComp):
            clause = node.generators[0]
            for turn in self.turns(clause.target, clause.iter, place):
                inside: Place | None = turn
                for asked in clause.ifs:
                    inside = inside and inside.under(self.condition(asked, inside))
                if inside and (name := self.name_of(node.key, inside)):
                    yield from self.rewrite(name, node.value, inside)
        elif isinstance(node, ast.IfExp):
            condition = self.condition(node.test, place)
            for asked, value in ((condition, node.body), (negated(condition), node.orelse)):
                if inside := place.under(asked):
                    yield from self.declared(value, inside)

    def call(self, node: ast.Call, place: Place) -> Iterator[Rewrite]:
        called = ast.unparse(node.func)
        short = called.rpartition(".")[2]
        if short == DECLARE or (short == "update" and place.declares):
            for keyword in node.keywords:
                if keyword.arg is None:
                    yield from self.declared(keyword.value, replace(place, declares=True))
                elif keyword.arg in self.fields:
                    yield from self.rewrite(keyword.arg, keyword.value, place)
            for each in node.args:
                yield from self.declared(each, place)
            return
        if called == "setattr" and len(node.args) == 3 and self.is_record(node.args[0], place):
            if name := self.name_of(node.args[1], place):
                yield from self.rewrite(name, node.args[2], place)
            return
        target, skip, passes = node.func, 0, place.declares
        if called == "run_hook" and node.args:
            target, skip, passes = node.args[0], 1, False
        elif called == "run_post_process_pass" and len(node.args) > 1:
            target, passes = node.args[1], True
            node = ast.Call(node.func, [node.args[0]], [])
        given = (*node.args[skip:], *(each.value for each in node.keywords))
        own = called.startswith("self.") and "self" in place.records
        if own or any(self.is_record(each, place) for each in given):
            yield from self.inside(self.function(target, place), node, skip, passes, place)

    def inside(
        self, function: Function | None, node: ast.Call, skip: int, passes: bool, place: Place
    ) -> Iterator[Rewrite]:
        if function is None or not isinstance(function.node, ast.FunctionDef):
            return
        place_inside = self.entered(function, node, skip, place)
        if place_inside is not None:
            declares = passes or declares_mapping(function.node)
            yield from self.body(function.node.body, replace(place_inside, declares=declares))

    def rewrite(self, name: str, node: ast.expr, place: Place) -> Iterator[Rewrite]:
        if isinstance(node, ast.IfExp):
            condition = self.condition(node.test, place)
            for asked, value in ((condition, node.body), (negated(condition), node.orelse)):
                if inside := place.under(asked):
                    yield from self.rewrite(name, value, inside)
            return
        for choice in self.choices(node, place):
            conditions = place.conditions
            here: Place | None = replace(choice.place, conditions=conditions)
            for asked in choice.conditions:
                here = here and here.under(asked)
            if here is None:
                continue
            if choice.node is not node:
                yield from self.rewrite(name, choice.node, here)
            elif self.field_of(node, here) != name:
                yield self.made(name, node, here)

    def made(self, name: str, node: ast.expr, place: Place) -> Rewrite:
        value = self.value(node, place)
        constant = value is not UNKNOWN and (value is None or plain(value) is not None)
        formula = "" if constant else self.formula(node, place)
        conditions = sorted(place.conditions, key=has_opaque)
        return Rewrite(name, plain(value) if constant else None, formula, conditions)

    def formula(self, node: ast.expr, place: Place) -> str:
        """Arithmetic of fields; "? " and the source of what depends on something else."""
        allowed = (ast.BinOp, ast.operator, ast.Constant, ast.Attribute, ast.Name, ast.Load)
        parts = list(ast.walk(node))
        known = all(
            isinstance(each, allowed)
            and (not isinstance(each, ast.Attribute) or self.field_of(each, place))
            and (not isinstance(each, ast.Name) or self.is_record(each, place))
            for each in parts
        )
        text = self.text(node, place)
        return text if known else "? " + opaque(text)[1]


def with_imports(node: ast.stmt, place: Place) -> Place:
    if not isinstance(node, ast.ImportFrom):
        return place
    names = [alias.asname or alias.name for alias in node.names]
    found = {name: imported(node, name, place.module) for name in names}
    return replace(place, imports=place.imports | found)


def declares_mapping(node: ast.FunctionDef) -> bool:
    """Whether a function declares a mapping that it has filled."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(
        ast.unparse(each.func).rpartition(".")[2] == DECLARE
        and any(keyword.arg is None for keyword in each.keywords)
        for each in calls
    )
