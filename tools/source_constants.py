"""Python source that is read, never imported: the values of its constant expressions.

A `Package` is a folder or a wheel. `Package.value` follows names through modules and imports as
far as an expression depends on nothing but literals; what depends on a machine is UNKNOWN.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SKIPPED = ("test", "tests", "benchmark", "eval")
"""folders whose files are no part of a server"""
DEEPEST = 40


class Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Member:
    """Of an enumeration."""

    name: str
    value: Any


@dataclass(frozen=True)
class Function:
    """A function, or a class, and the module it is defined in."""

    module: str
    node: ast.FunctionDef | ast.ClassDef


@dataclass
class Package:
    """Text of Python files by path inside a wheel or folder, of one top-level package."""

    files: Mapping[str, str]
    trees: dict[str, ast.Module | None] = field(default_factory=dict[str, ast.Module | None])

    @classmethod
    def of(cls, path: Path, name: str) -> Package:
        return cls(dict(wheel_files(path, name) if path.is_file() else folder_files(path, name)))

    def tree(self, module: str) -> ast.Module | None:
        """By dotted name; None if it is not in the package."""
        if module not in self.trees:
            base = module.replace(".", "/")
            texts = (self.files.get(each) for each in (f"{base}.py", f"{base}/__init__.py"))
            text = next((each for each in texts if each is not None), None)
            self.trees[module] = None if text is None else parsed(text)
        return self.trees[module]

    def bindings(self, module: str) -> dict[str, ast.AST]:
        tree = self.tree(module)
        return {} if tree is None else bindings_of(tree)

    def value(
        self, node: ast.AST | None, module: str, local: Mapping[str, Any] | None = None
    ) -> Any:
        """The value of an expression of `module`, with `local` names; UNKNOWN if it has none."""
        return Evaluation(self, module, dict(local or {})).of(node)

    def find(self, name: str, module: str, depth: int = 0) -> Function | None:
        """The function or class that a name of a module stands for."""
        bound = self.bindings(module).get(name)
        if isinstance(bound, ast.FunctionDef | ast.ClassDef):
            return Function(module, bound)
        if isinstance(bound, ast.ImportFrom) and depth < DEEPEST:
            origin, original = imported(bound, name, module)
            return self.find(original, origin, depth + 1)
        return None


def wheel_files(path: Path, name: str) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(path) as wheel:
        for each in wheel.namelist():
            if wanted(each, name):
                yield each, wheel.read(each).decode("utf-8-sig", "replace")


def folder_files(path: Path, name: str) -> Iterator[tuple[str, str]]:
    for each in sorted((path / name).rglob("*")):
        inside = each.relative_to(path).as_posix()
        if each.is_file() and wanted(inside, name):
            yield inside, each.read_text("utf-8-sig", "replace")


def wanted(path: str, name: str) -> bool:
    folders = path.split("/")
    suffix = path.endswith((".py", ".cc", ".cpp", ".cu", ".cuh", ".h", ".rs"))
    return folders[0] == name and suffix and not set(folders) & set(SKIPPED)


def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def bindings_of(tree: ast.Module) -> dict[str, ast.AST]:
    """Name -> the statement or expression that a module binds to it; of several, the first."""
    found: dict[str, ast.AST] = {}
    for node in statements(tree.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found.setdefault(node.target.id, node.value)
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """With those inside `if`, `try` and `with`."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from statements(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def imported(node: ast.ImportFrom, name: str, module: str) -> tuple[str, str]:
    """(module, name there) of a name that an import binds."""
    original = next(each.name for each in node.names if name in (each.asname, each.name))
    origin = node.module or ""
    if node.level:
        parents = module.split(".")[: -node.level]
        origin = ".".join([*parents, origin] if origin else parents)
    return origin, original


@dataclass
class Evaluation:
    package: Package
    module: str
    local: dict[str, Any]
    depth: int = 0

    def of(self, node: ast.AST | None) -> Any:
        if node is None or self.depth > DEEPEST:
            return UNKNOWN
        read = READERS.get(type(node))
        return UNKNOWN if read is None else read(self, node)

    def elsewhere(self, module: str, local: Mapping[str, Any] | None = None) -> Evaluation:
        return Evaluation(self.package, module, dict(local or {}), self.depth + 1)

    def several(self, nodes: list[ast.expr]) -> Any:
        """A list, or UNKNOWN if one of them is."""
        found: list[Any] = []
        for node in nodes:
            value = self.of(node.value if isinstance(node, ast.Starred) else node)
            if value is UNKNOWN or (isinstance(node, ast.Starred) and not isinstance(value, list)):
                return UNKNOWN
            found += value if isinstance(node, ast.Starred) else [value]
        return found

    def name(self, name: str) -> Any:
        if name in self.local:
            return self.local[name]
        bound = self.package.bindings(self.module).get(name)
        if isinstance(bound, ast.ImportFrom):
            origin, original = imported(bound, name, self.module)
            return self.elsewhere(origin).name(original)
        if isinstance(bound, ast.FunctionDef | ast.ClassDef):
            return Function(self.module, bound)
        return UNKNOWN if bound is None else self.elsewhere(self.module).of(bound)

    def attribute(self, node: ast.Attribute) -> Any:
        owner = self.of(node.value)
        if isinstance(owner, Member):
            return {"name": owner.name, "value": owner.value}.get(node.attr, UNKNOWN)
        if isinstance(owner, Function) and isinstance(owner.node, ast.ClassDef):
            values = class_values(owner.node)
            at = self.elsewhere(owner.module)
            at.local = {name: at.of(each) for name, each in values.items() if name != node.attr}
            value = at.of(values.get(node.attr))
            return Member(node.attr, value) if is_enum(owner.node) else value
        return UNKNOWN

    def call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            return self.method(node.func)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        arguments = self.several(node.args)
        if name in COPIES and arguments is not UNKNOWN and len(arguments) == 1:
            return self.items(arguments[0])
        if name in COPIES and arguments == []:
            return []
        found = self.of(node.func)
        if isinstance(found, Function) and isinstance(found.node, ast.FunctionDef):
            return self.returned(found, arguments)
        return UNKNOWN

    def items(self, value: Any) -> Any:
        """What iterating over a value gives."""
        if isinstance(value, dict):
            return list(value)
        if isinstance(value, Function) and isinstance(value.node, ast.ClassDef):
            if not is_enum(value.node):
                return UNKNOWN
            members = class_values(value.node).items()
            at = self.elsewhere(value.module)
            return [Member(name, at.of(expression)) for name, expression in members]
        return list(value) if isinstance(value, list | tuple | str) else UNKNOWN

    def method(self, function: ast.Attribute) -> Any:
        owner = self.of(function.value)
        if isinstance(owner, dict) and function.attr in ("keys", "values"):
            return list(owner if function.attr == "keys" else owner.values())
        if isinstance(owner, str) and function.attr in ("lower", "upper"):
            return getattr(owner, function.attr)()
        if isinstance(owner, list) and function.attr == "copy":
            return owner
        return UNKNOWN

    def returned(self, function: Function, arguments: Any) -> Any:
        """What a function without branches, or its last statement, returns."""
        assert isinstance(function.node, ast.FunctionDef)
        names = [each.arg for each in function.node.args.args]
        local = dict(zip(names, arguments, strict=False)) if arguments is not UNKNOWN else {}
        at = self.elsewhere(function.module, local)
        value: Any = UNKNOWN
        for node in function.node.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                at.local[node.targets[0].id] = at.of(node.value)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    origin, original = imported(node, alias.asname or alias.name, function.module)
                    at.local[alias.asname or alias.name] = at.elsewhere(origin).name(original)
            elif isinstance(node, ast.Return):
                value = at.of(node.value)
        return value

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Any:
        clause = node.generators[0]
        items = self.items(self.of(clause.iter))
        if items is UNKNOWN or clause.ifs or len(node.generators) > 1:
            return UNKNOWN
        if not isinstance(clause.target, ast.Name):
            return UNKNOWN
        found: list[Any] = []
        for item in items:
            inner = Evaluation(self.package, self.module, {**self.local, clause.target.id: item})
            found.append(inner.of(node.elt))
        return UNKNOWN if UNKNOWN in found else found

    def binary(self, node: ast.BinOp) -> Any:
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
            return left + right
        if isinstance(left, int | float) and isinstance(right, int | float):
            compute = ARITHMETIC.get(type(node.op))
            return UNKNOWN if compute is None else compute(left, right)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            return left + right
        return UNKNOWN

    def item(self, node: ast.Subscript) -> Any:
        owner, at = self.of(node.value), self.of(node.slice)
        if isinstance(owner, list) and isinstance(at, int) and -len(owner) <= at < len(owner):
            return owner[at]
        if isinstance(owner, dict) and isinstance(at, str):
            return owner.get(at, UNKNOWN)
        return UNKNOWN

    def negative(self, node: ast.UnaryOp) -> Any:
        value = self.of(node.operand)
        minus = isinstance(node.op, ast.USub) and isinstance(value, int | float)
        return -value if minus else UNKNOWN

    def mapping(self, node: ast.Dict) -> Any:
        keys = self.several([key for key in node.keys if key is not None])
        if keys is UNKNOWN or len(keys) != len(node.values):
            return UNKNOWN
        return dict(zip(keys, (self.of(each) for each in node.values), strict=True))


def class_values(node: ast.ClassDef) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for each in node.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            found[each.targets[0].id] = each.value
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value:
            found[each.target.id] = each.value
    return found


def is_enum(node: ast.ClassDef) -> bool:
    return any("Enum" in ast.unparse(base) for base in node.bases)


COPIES = ("list", "tuple", "set", "frozenset", "sorted")
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
}
READERS: dict[type[ast.AST], Callable[[Evaluation, Any], Any]] = {
    ast.Constant: lambda at, node: node.value,
    ast.List: lambda at, node: at.several(node.elts),
    ast.Tuple: lambda at, node: at.several(node.elts),
    ast.Set: lambda at, node: at.several(node.elts),
    ast.Dict: Evaluation.mapping,
    ast.Name: lambda at, node: at.name(node.id),
    ast.Attribute: Evaluation.attribute,
    ast.Call: Evaluation.call,
    ast.ListComp: Evaluation.comprehension,
    ast.Subscript: Evaluation.item,
    ast.BinOp: Evaluation.binary,
    ast.UnaryOp: Evaluation.negative,
}
