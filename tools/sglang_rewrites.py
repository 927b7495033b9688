"""What one release of SGLang makes of its arguments at start-up, read from its source.

An assignment to a field is followed from `ServerArgs.__post_init__` (or the pipeline of hooks that
replaced it) with the conditions on its way. Kept are those whose conditions are about arguments
and the platform alone; whatever else a condition asks makes it unknowable here, and it is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sglang_flags import ARGS, FlagReader, plain
from source_constants import UNKNOWN, Function, Member, Package, imported

OPAQUE = ["?"]
TRUE = ["and"]
PLATFORMS = {"npu": "npu", "cuda": "cuda", "cpu": "cpu", "hip": "hip", "xpu": "xpu", "hpu": "hpu"}
RECORDS = ("self", "server_args", "args", "cfg", "view")
"""names under which functions have the arguments"""
VIEWS = ("resolving_view", "resolved_view", "_resolved")
DEEPEST = 12
DISPATCHING = 1
"""how deep `resolve_once` and its pipeline are"""
LONGEST = 8
"""conditions on the way to an assignment"""
COMPARED = {ast.Eq: "=", ast.NotEq: "!=", ast.Gt: ">", ast.Lt: "<", ast.GtE: ">=", ast.LtE: "<="}
Condition = list[Any]


@dataclass(frozen=True)
class Rewrite:
    """`value`: what the field becomes, `formula`: how it is computed where it is no constant;
    `conditions`: all of them hold. A condition is [operator, field, value], [operator, conditions
    ...] with and, or, not, or ["platform", name]."""

    name: str
    value: Any
    formula: str
    conditions: list[Condition]


@dataclass(frozen=True)
class Place:
    """Where the reader is: names that stand for the arguments, imports, and the conditions."""

    module: str
    records: frozenset[str]
    conditions: tuple[Condition, ...] = ()
    imports: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    depth: int = 0
    declares: bool = False
    """in a pass: the mapping that it returns is what it changes"""

    def under(self, condition: Condition) -> Place:
        return replace(self, conditions=(*self.conditions, *flat(condition)))


class RewriteReader:
    def __init__(self, package: Package) -> None:
        self.package = package
        arguments = FlagReader(package)
        self.fields = set(arguments.fields)
        self.methods = {
            each.name: each
            for each in arguments.server_args.body
            if isinstance(each, ast.FunctionDef)
        }

    def rewrites(self) -> list[Rewrite]:
        found: dict[str, Rewrite] = {}
        for start in ("__post_init__", "resolve_once"):
            if start in self.methods:
                place = Place(ARGS, frozenset({"self"}))
                for each in self.body(self.methods[start].body, place):
                    found.setdefault(repr(each), each)
        return list(found.values())

    def body(self, statements: Sequence[ast.stmt], place: Place) -> Iterator[Rewrite]:
        place = self.with_locals(statements, place)
        for node in statements:
            yield from self.statement(node, place)
            if isinstance(node, ast.If):
                condition = self.condition(node.test, place)
                if leaves(node.body):
                    place = self.after(negated(condition), node.body, place)
                elif node.orelse and leaves(node.orelse):
                    place = self.after(condition, node.orelse, place)

    def after(self, condition: Condition, left: Sequence[ast.stmt], place: Place) -> Place:
        """Behind a branch that is left. A server that starts has left none by raising, and not the
        functions that only put the steps in order."""
        opaque = OPAQUE in flat(condition)
        if opaque and (isinstance(left[-1], ast.Raise) or place.depth <= DISPATCHING):
            return place
        return place.under(condition)

    def with_locals(self, statements: Sequence[ast.stmt], place: Place) -> Place:
        """With what a block imports, and the names it gives to views of the arguments."""
        imports, records = dict(place.imports), set(place.records)
        for node in statements:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = alias.asname or alias.name
                    imports[name] = imported(node, name, place.module)
            elif isinstance(node, ast.Assign) and makes_view(node.value):
                records.add(ast.unparse(node.targets[0]))
        return replace(place, imports=imports, records=frozenset(records))

    def statement(self, node: ast.stmt, place: Place) -> Iterator[Rewrite]:
        if isinstance(node, ast.If):
            condition = self.condition(node.test, place)
            yield from self.body(node.body, place.under(condition))
            yield from self.body(node.orelse, place.under(negated(condition)))
        elif isinstance(node, ast.With | ast.Try):
            yield from self.body(node.body, place)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                name = self.field_of(target, place) or self.entry(target, place)
                if name:
                    yield from self.rewrite(name, node.value, place)
            yield from self.declared(node.value, place)
        elif isinstance(node, ast.Return):
            yield from self.declared(node.value, place)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self.call(node.value, place)

    def declared(self, node: ast.expr | None, place: Place) -> Iterator[Rewrite]:
        """A pass's mapping, where it is written out."""
        if not place.declares or not isinstance(node, ast.Dict):
            return
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in self.fields:
                yield from self.rewrite(str(key.value), value, place)

    def entry(self, node: ast.expr, place: Place) -> str:
        """The field in `declared["field"] = ..` of a pass."""
        if not place.declares or not isinstance(node, ast.Subscript):
            return ""
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return key if isinstance(key, str) and key in self.fields else ""

    def call(self, node: ast.Call, place: Place) -> Iterator[Rewrite]:
        called = ast.unparse(node.func)
        if called.rpartition(".")[2] == "declare_resolution":
            for keyword in node.keywords:
                if keyword.arg in self.fields:
                    yield from self.rewrite(keyword.arg, keyword.value, place)
            return
        if place.depth > DEEPEST or OPAQUE in place.conditions:
            return
        target, passes = node.func, called == "run_post_process_pass" and len(node.args) > 1
        if called == "run_hook" and node.args:
            target = node.args[0]
        elif passes:
            target = node.args[1]
        if called.startswith("self.") and called[5:] in self.methods and "self" in place.records:
            function = Function(ARGS, self.methods[called[5:]])
        elif any(isinstance(each, ast.Name) and each.id in place.records for each in node.args):
            function = self.function(target, place)
        else:
            return
        if function is not None and isinstance(function.node, ast.FunctionDef):
            names = [each.arg for each in function.node.args.args]
            records = frozenset(name for name in names if name in RECORDS)
            inside = Place(function.module, records, place.conditions, {}, place.depth + 1, passes)
            yield from self.body(function.node.body, inside)

    def function(self, node: ast.expr, place: Place) -> Function | None:
        name = ast.unparse(node)
        module, original = place.imports.get(name, (place.module, name))
        return self.package.find(original, module)

    def rewrite(self, name: str, node: ast.expr, place: Place) -> Iterator[Rewrite]:
        known = OPAQUE not in place.conditions and ["or"] not in place.conditions
        if not known or len(place.conditions) > LONGEST:
            return
        if isinstance(node, ast.IfExp):
            condition = self.condition(node.test, place)
            yield from self.rewrite(name, node.body, place.under(condition))
            yield from self.rewrite(name, node.orelse, place.under(negated(condition)))
            return
        value = self.package.value(node, place.module)
        constant = value is not UNKNOWN and (value is None or plain(value) is not None)
        formula = "" if constant else self.formula(node, place)
        if formula != name:
            yield Rewrite(name, plain(value) if constant else None, formula, list(place.conditions))

    def formula(self, node: ast.expr, place: Place) -> str:
        """Arithmetic of fields; "?" for what depends on something else."""
        allowed = (ast.BinOp, ast.operator, ast.Constant, ast.Attribute, ast.Name, ast.Load)
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and not self.field_of(each, place):
                return "?"
            if not isinstance(each, allowed):
                return "?"
            if isinstance(each, ast.Name) and each.id not in place.records:
                return "?"
        text = ast.unparse(node)
        for record in sorted(place.records, key=len, reverse=True):
            text = text.replace(f"{record}.", "")
        return text

    def field_of(self, node: ast.expr, place: Place) -> str:
        if not isinstance(node, ast.Attribute):
            return ""
        known = self.is_record(node.value, place) and node.attr in self.fields
        return node.attr if known else ""

    def is_record(self, node: ast.expr, place: Place) -> bool:
        return makes_view(node) or (isinstance(node, ast.Name) and node.id in place.records)

    def predicate(self, node: ast.Call, place: Place) -> Condition:
        """What a function of the arguments that only returns an expression asks."""
        function = self.function(node.func, place) if len(node.args) == 1 else None
        asked = function is not None and self.is_record(node.args[0], place)
        if not asked or function is None or not isinstance(function.node, ast.FunctionDef):
            return OPAQUE
        *before, last = function.node.body
        plain_text = all(isinstance(each, ast.Expr | ast.ImportFrom) for each in before)
        if place.depth > DEEPEST or not plain_text or not isinstance(last, ast.Return):
            return OPAQUE
        records = frozenset(each.arg for each in function.node.args.args)
        inside = Place(function.module, records, (), {}, place.depth + 1)
        return self.condition(last.value, inside) if last.value is not None else OPAQUE

    def condition(self, node: ast.expr, place: Place) -> Condition:
        if isinstance(node, ast.BoolOp):
            word = "and" if isinstance(node.op, ast.And) else "or"
            return simplified([word, *(self.condition(each, place) for each in node.values)])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negated(self.condition(node.operand, place))
        if name := self.field_of(node, place):
            return ["true", name]
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self.comparison(node, place)
        asked = platform(ast.unparse(node))
        if asked == OPAQUE and isinstance(node, ast.Call):
            return self.predicate(node, place)
        return asked

    def comparison(self, node: ast.Compare, place: Place) -> Condition:
        operator, right = node.ops[0], node.comparators[0]
        if "model_path" in ast.unparse(node.left):
            return ["or"]  # a model without a path, for tests
        name = self.field_of(node.left, place)
        value = self.package.value(right, place.module)
        value = value.value if isinstance(value, Member) else value
        if not name or value is UNKNOWN or (isinstance(value, list) and UNKNOWN in value):
            return OPAQUE
        if isinstance(operator, ast.Is | ast.IsNot) and value is None:
            found: Condition = ["none", name]
            return found if isinstance(operator, ast.Is) else negated(found)
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(value, list):
            found = ["in", name, plain(value)]
            return found if isinstance(operator, ast.In) else negated(found)
        word = COMPARED.get(type(operator))
        if word is None or not isinstance(value, bool | int | float | str | None):
            return OPAQUE
        return negated(["=", name, value]) if word == "!=" else [word, name, value]


def makes_view(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in VIEWS


def platform(text: str) -> Condition:
    """`is_npu()` and `get_platform().is_npu`."""
    name = text.removesuffix("()").rpartition("is_")[2]
    asked = text.removesuffix("()").rpartition(".")[2] == f"is_{name}"
    return ["platform", PLATFORMS[name]] if asked and name in PLATFORMS else OPAQUE


def negated(condition: Condition) -> Condition:
    if condition == OPAQUE:
        return OPAQUE
    if condition[0] == "not":
        return condition[1]
    if condition[0] in ("and", "or"):
        word = "or" if condition[0] == "and" else "and"
        return simplified([word, *(negated(each) for each in condition[1:])])
    return ["not", condition]


def simplified(condition: Condition) -> Condition:
    """Without what can never matter: a disjunction with an opaque part keeps the others."""
    word, *parts = condition
    inner: list[Condition] = []
    for part in parts:
        inner += part[1:] if part[0] == word else [part]
    if word == "and" and OPAQUE in inner:
        return OPAQUE
    if word == "and" and ["or"] in inner:
        return ["or"]
    if word == "or":
        known = [each for each in inner if each not in (OPAQUE, ["or"])]
        if TRUE in inner:
            return TRUE
        if not known:
            return OPAQUE if OPAQUE in inner else ["or"]
        inner = [*known, OPAQUE] if OPAQUE in inner else known
    return inner[0] if len(inner) == 1 else [word, *inner]


def flat(condition: Condition) -> list[Condition]:
    return condition[1:] if condition[0] == "and" else [condition]


def leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
