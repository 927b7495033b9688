"""What an expression of SGLang's source asks of arguments, platform and model."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from condition_algebra import (
    FALSE,
    LARGEST,
    TRUE,
    Condition,
    all_of,
    any_of,
    is_opaque,
    negated,
    opaque,
    platform,
    size,
)
from local_names import (
    Choice,
    Place,
    defaults_of,
    leaves,
    overlaid,
    stored,
    unknown,
    unpacked,
    with_names,
)
from sglang_flags import ARGS, FlagReader, plain
from source_constants import UNKNOWN, Function, Member, Package

VIEWS = ("resolving_view", "resolved_view", "_resolved")
DEEPEST = 12
COMPARED = {ast.Eq: "=", ast.NotEq: "!=", ast.Gt: ">", ast.Lt: "<", ast.GtE: ">=", ast.LtE: "<="}
MODEL = {"is_deepseek_dsa": "sparse", "is_deepseek_nsa": "sparse", "use_mla_backend": "mla"}
"""functions that ask for the attention of the model"""


class ConditionReader:
    def __init__(self, package: Package) -> None:
        self.package = package
        arguments = FlagReader(package)
        self.fields = set(arguments.fields)
        self.methods = {
            each.name: each
            for each in arguments.server_args.body
            if isinstance(each, ast.FunctionDef)
        }

    def single(self, node: ast.expr, place: Place) -> tuple[ast.expr, Place]:
        """What a local name certainly stands for, and where that was written."""
        for _ in range(DEEPEST):
            choices = place.names.get(node.id, ()) if isinstance(node, ast.Name) else ()
            if len(choices) != 1 or choices[0].conditions:
                break
            node, place = choices[0].node, choices[0].place
        return node, place

    def choices(self, node: ast.expr, place: Place) -> Sequence[Choice]:
        node, place = self.single(node, place)
        known = place.names.get(node.id, ()) if isinstance(node, ast.Name) else ()
        return known or [Choice(node, place)]

    def value(self, node: ast.expr, place: Place) -> Any:
        """Of a constant expression; UNKNOWN if it is none."""
        node, place = self.single(node, place)
        if any(self.branches(each, place) for each in ast.walk(node)):
            return UNKNOWN
        found = self.package.value(node, place.module)
        if found is UNKNOWN and isinstance(node, ast.Name) and node.id in place.imports:
            module, name = place.imports[node.id]
            found = self.package.value(ast.Name(name), module)
        found = found.value if isinstance(found, Member) else found
        return UNKNOWN if isinstance(found, list) and UNKNOWN in found else found

    def branches(self, node: ast.AST, place: Place) -> bool:
        """Whether a function is called that returns one thing or another."""
        function = self.function(node.func, place) if isinstance(node, ast.Call) else None
        found = ast.walk(function.node) if function is not None else ()
        return sum(isinstance(each, ast.Return) for each in found) > 1

    def field_of(self, node: ast.expr, place: Place) -> str:
        """The field that `cfg.field`, `getattr(cfg, "field", ..)` or a name for it reads."""
        node, place = self.single(node, place)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and node.args[1:]:
            owner, name = node.args[0], self.value(node.args[1], place)
        elif isinstance(node, ast.Attribute):
            owner, name = node.value, node.attr
        else:
            return ""
        return name if name in self.fields and self.is_record(owner, place) else ""

    def is_record(self, node: ast.expr, place: Place) -> bool:
        if isinstance(node, ast.Name) and node.id in place.records:
            return True
        node, place = self.single(node, place)
        known = isinstance(node, ast.Name) and node.id in place.records
        return known or makes_view(node)

    def is_architecture(self, node: ast.expr, place: Place) -> bool:
        """`hf_config.architectures[0]`, or a name for it."""
        text = ast.unparse(self.single(node, place)[0])
        return "architectures" in text and text.endswith("[0]")

    def function(self, node: ast.expr, place: Place) -> Function | None:
        node, place = self.single(node, place)
        name = ast.unparse(node)
        if name.startswith("self.") and "self" in place.records:
            method = self.methods.get(name[5:])
            return None if method is None else Function(ARGS, method)
        module, original = place.imports.get(name, (place.module, name))
        return self.package.find(original, module)

    def entered(self, function: Function, node: ast.Call, skip: int, place: Place) -> Place | None:
        """The place inside a function that is called, its parameters bound; `skip`: arguments of
        the call that are not the function's. None if it is being read already."""
        assert isinstance(function.node, ast.FunctionDef)
        own = f"{function.module}.{function.node.name}"
        if own in place.within or len(place.within) > DEEPEST:
            return None
        spec = function.node.args
        parameters = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        records: set[str] = set()
        if parameters[:1] == ["self"]:
            records, parameters = {"self"}, parameters[1:]
        given = dict(zip(parameters, node.args[skip:], strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        outer = Place(function.module, frozenset())
        names = {
            name: (Choice(default, outer),)
            for name, default in defaults_of(spec).items()
            if name not in given
        }
        for name, argument in given.items():
            if self.is_record(argument, place):
                records.add(name)
            else:
                names[name] = (Choice(argument, place),)
        return Place(
            function.module,
            frozenset(records),
            place.conditions,
            names=names,
            within=(*place.within, own),
        )

    def condition(self, node: ast.expr, place: Place) -> Condition:
        found = self.read(node, place)
        if size(found) > LARGEST or (is_opaque(found) and isinstance(node, ast.BoolOp | ast.Call)):
            return opaque(self.text(node, place))
        return found

    def read(self, node: ast.expr, place: Place) -> Condition:
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(each, place) for each in node.values]
            return all_of(parts) if isinstance(node.op, ast.And) else any_of(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negated(self.condition(node.operand, place))
        if isinstance(node, ast.Constant):
            return TRUE if node.value else FALSE
        if name := self.field_of(node, place):
            return ["true", name]
        if isinstance(node, ast.Name):
            return self.named(node, place)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self.comparison(node, place)
        asked = platform(ast.unparse(node))
        if asked is None and isinstance(node, ast.Call):
            asked = self.called(node, place)
        return opaque(self.text(node, place)) if asked is None else asked

    def named(self, node: ast.Name, place: Place) -> Condition:
        """What a name stands for: each of its choices, or what its module binds it to."""
        if choices := place.names.get(node.id):
            found = [
                all_of([*each.conditions, self.condition(each.node, each.place)])
                for each in choices
            ]
            asked = any_of(found)
        else:
            bound = self.package.bindings(place.module).get(node.id)
            if not isinstance(bound, ast.Call | ast.Constant):
                return opaque(node.id)
            asked = self.condition(bound, Place(place.module, frozenset()))
        return opaque(node.id) if is_opaque(asked) else asked

    def called(self, node: ast.Call, place: Place) -> Condition | None:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in MODEL:
            return ["model", MODEL[name]]
        if name == "bool" and len(node.args) == 1:
            return self.condition(node.args[0], place)
        text = node.args[0] if node.args else None
        if name == "startswith" and isinstance(node.func, ast.Attribute) and text is not None:
            begins = self.value(text, place)
            if self.is_architecture(node.func.value, place) and isinstance(begins, str):
                return ["arch has", begins]
        function = self.function(node.func, place)
        if function is None or not isinstance(function.node, ast.FunctionDef):
            return None
        inside = self.entered(function, node, 0, place)
        return None if inside is None else self.returned(function.node, inside)

    def returned(self, function: ast.FunctionDef, place: Place) -> Condition | None:
        """What a function that only binds names and returns an expression asks."""
        *before, last = function.body
        for each in before:
            place = self.bound(each, place)
        if not all(isinstance(each, ast.Expr | ast.ImportFrom | ast.Assign) for each in before):
            return None
        if not isinstance(last, ast.Return) or last.value is None:
            return None
        return self.condition(last.value, place)

    def comparison(self, node: ast.Compare, place: Place) -> Condition:
        left, operator, right = node.left, node.ops[0], node.comparators[0]
        if re.search(r"\bmodel_path\b", ast.unparse(left)):
            # Not one without a path, as tests have it.
            return TRUE if isinstance(operator, ast.NotEq | ast.NotIn | ast.IsNot) else FALSE
        text = opaque(self.text(node, place))
        found: list[Condition] = []
        names = {self.field_of(each.node, each.place) for each in self.choices(left, place)}
        other = self.field_of(right, place)
        if other and other in names and isinstance(operator, ast.NotEq) and len(names) > 1:
            return TRUE  # what was chosen for a field differs from it: else nothing changes
        for each in self.choices(left, place):
            asked = self.compared(each, operator, Choice(right, place))
            found.append(all_of([*each.conditions, text if asked is None else asked]))
        asked = any_of(found)
        return text if is_opaque(asked) else asked

    def compared(self, left: Choice, operator: ast.cmpop, right: Choice) -> Condition | None:
        """None if it is not about fields, or the model's architecture."""
        value, constant = self.value(right.node, right.place), self.value(left.node, left.place)
        value = list(value) if isinstance(value, dict) else value
        if self.is_architecture(left.node, left.place):
            return about_architecture(operator, value)
        if isinstance(constant, str) and isinstance(operator, ast.In | ast.NotIn):
            whole = "architectures" in ast.unparse(right.node)
            if whole or self.is_architecture(right.node, right.place):
                part = self.is_architecture(right.node, right.place)
                found = ["arch has", constant] if part else ["arch", [constant]]
                return found if isinstance(operator, ast.In) else negated(found)
        name = self.field_of(left.node, left.place)
        other = self.field_of(right.node, right.place)
        if not name and other and isinstance(operator, ast.Eq | ast.NotEq):
            name, value = other, constant
        elif name and name == other:
            same = isinstance(operator, ast.Eq | ast.GtE | ast.LtE)
            return TRUE if same else FALSE
        if not name:
            return decided(constant, operator, value)
        return None if value is UNKNOWN else about_field(name, operator, value)

    def bound(self, node: ast.stmt, place: Place) -> Place:
        """Behind a statement, with the local names that it gives a value."""
        return with_names(place, self.bindings(node, place))

    def bindings(self, node: ast.stmt, place: Place) -> dict[str, tuple[Choice, ...]]:
        """What a statement binds names to, and when."""
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            pairs = [pair for target in targets for pair in unpacked(target, node.value)]
            return {
                name: (Choice(value, place) if value is not None else unknown(name),)
                for name, value in pairs
            }
        if isinstance(node, ast.With | ast.Try):
            return self.sequence(node.body, place)
        if isinstance(node, ast.For | ast.While | ast.AugAssign):
            return {name: (unknown(name),) for each in ast.walk(node) for name in stored(each)}
        if not isinstance(node, ast.If):
            return {}
        condition = self.condition(node.test, place)
        found: dict[str, tuple[Choice, ...]] = {}
        for asked, body in ((condition, node.body), (negated(condition), node.orelse)):
            if asked == FALSE or leaves(body):
                continue
            for name, choices in self.sequence(body, place).items():
                under = tuple(each.under(asked) for each in choices)
                found[name] = (*found.get(name, ()), *under)
        return found

    def sequence(self, body: Sequence[ast.stmt], place: Place) -> dict[str, tuple[Choice, ...]]:
        found: dict[str, tuple[Choice, ...]] = {}
        for node in body:
            bound = self.bindings(node, place)
            for name, choices in bound.items():
                found[name] = overlaid(name, found.get(name, ()), choices)
            place = with_names(place, bound)
        return found

    def text(self, node: ast.expr, place: Place) -> str:
        """An expression as it is written, without the names of the records."""
        written = ast.unparse(node)
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and self.field_of(each, place):
                written = written.replace(ast.unparse(each), each.attr)
        return written.removeprefix("self.")


def about_architecture(operator: ast.cmpop, value: Any) -> Condition | None:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not isinstance(
        operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn
    ):
        return None
    found: Condition = ["arch", sorted(set(plain(listed)))]
    return found if isinstance(operator, ast.Eq | ast.In) else negated(found)


def about_field(name: str, operator: ast.cmpop, value: Any) -> Condition | None:
    if isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and value is None:
        found: Condition = ["none", name]
        return found if isinstance(operator, ast.Is | ast.Eq) else negated(found)
    if isinstance(operator, ast.Is | ast.IsNot) and isinstance(value, bool):
        found = ["=", name, value]
        return found if isinstance(operator, ast.Is) else negated(found)
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(value, list):
        found = ["in", name, plain(value)]
        return found if isinstance(operator, ast.In) else negated(found)
    word = COMPARED.get(type(operator))
    if word is None or not isinstance(value, bool | int | float | str):
        return None
    return negated(["=", name, value]) if word == "!=" else [word, name, value]


def decided(left: Any, operator: ast.cmpop, right: Any) -> Condition | None:
    """A comparison of two constants."""
    if left is UNKNOWN or right is UNKNOWN:
        return None
    if isinstance(operator, ast.Eq | ast.Is | ast.NotEq | ast.IsNot):
        return TRUE if (left == right) == isinstance(operator, ast.Eq | ast.Is) else FALSE
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, list):
        return TRUE if (left in right) == isinstance(operator, ast.In) else FALSE
    return None


def makes_view(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in VIEWS
