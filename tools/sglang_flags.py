"""The flags of one release of SGLang, read from the source of its `ServerArgs`.

Up to 0.5.15 they are `parser.add_argument` calls; since then most are fields annotated with
`A[type, Arg(...)]`, in the class itself or in the namespaces it is assembled from. Both forms are
read as the release itself reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from source_constants import UNKNOWN, Member, Package

ARGS = "sglang.srt.server_args"
SCALARS = ("int", "float", "str")
TYPES = {
    "json.loads": "json",
    "json_list_type": "json",
    "human_readable_int": "size",
    "nullable_str": "str",
    "parse_cuda_graph_config_arg": "json",
}
"""functions that parse a value -> the shape they accept"""


@dataclass(frozen=True)
class Flag:
    """As argparse sees it. `arity`: 0, 1, "?", "+", "*"; `shape`: bool, int, float, size (an int
    that may be written 4k), json or str; `state`: "", "deprecated" or "stops"; `today`: the flag
    that the release names instead."""

    spellings: tuple[str, ...]
    name: str
    arity: str
    shape: str
    default: Any = None
    choices: tuple[str, ...] = ()
    state: str = ""
    today: str = ""


@dataclass(frozen=True)
class Field:
    """Of a class: `module` is where its annotation was written."""

    name: str
    annotation: ast.expr
    default: ast.expr | None
    module: str


class FlagReader:
    def __init__(self, package: Package) -> None:
        self.package = package
        found = package.find("ServerArgs", ARGS)
        if found is None or not isinstance(found.node, ast.ClassDef):
            raise ValueError("no class ServerArgs")
        self.server_args = found.node
        self.fields = {each.name: each for each in self.all_fields()}

    def flags(self) -> list[Flag]:
        method = next(
            each
            for each in self.server_args.body
            if isinstance(each, ast.FunctionDef) and each.name == "add_cli_args"
        )
        registered = list(self.registered(method, ARGS, {}))
        generated = "add_cli_args_from_dataclass" in ast.unparse(method)
        annotated = list(self.annotated()) if generated else []
        return [*annotated, *registered]

    def all_fields(self) -> Iterator[Field]:
        yield from self.fields_of(self.server_args, ARGS)
        namespaces = self.package.bindings(ARGS).get("_INPUT_NAMESPACES")
        for each in namespaces.elts if isinstance(namespaces, ast.List) else ():
            found = self.package.find(ast.unparse(each), ARGS)
            if found is None or not isinstance(found.node, ast.ClassDef):
                raise ValueError(f"namespace {ast.unparse(each)} was not found")
            yield from self.fields_of(found.node, found.module)

    def fields_of(self, node: ast.ClassDef, module: str) -> Iterator[Field]:
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                yield Field(each.target.id, each.annotation, each.value, module)

    def default_of(self, name: str) -> Any:
        """Of a field; UNKNOWN if there is none, or if it depends on the machine."""
        field = self.fields.get(name)
        return UNKNOWN if field is None else self.field_default(field)

    def field_default(self, field: Field) -> Any:
        node = field.default
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("field"):
            given = {each.arg: each.value for each in node.keywords}
            factory = given.get("default_factory")
            if isinstance(factory, ast.Lambda):
                return self.package.value(factory.body, field.module)
            if factory is not None:
                return {"list": [], "dict": {}}.get(ast.unparse(factory), UNKNOWN)
            node = given.get("default")
        return self.package.value(node, field.module)

    def annotated(self) -> Iterator[Flag]:
        for field in self.fields.values():
            node = field.annotation
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("A", "Annotated"):
                assert isinstance(node.slice, ast.Tuple)
                kind, *metadata = node.slice.elts
                described = next((each for each in metadata if is_description(each)), None)
                if described is not None:
                    yield from self.from_field(field, kind, described)

    def from_field(self, field: Field, kind: ast.expr, described: ast.expr) -> Iterator[Flag]:
        """As `add_cli_args_from_dataclass` registers it."""
        given: dict[str | None, ast.expr] = {}
        if isinstance(described, ast.Call):
            given = {each.arg: each.value for each in described.keywords}
            if described.args:
                given["help"] = described.args[0]
        else:
            given["help"] = described

        def value(name: str) -> Any:
            found = self.package.value(given.get(name), field.module)
            return None if found is UNKNOWN else found

        if value("no_cli"):
            return
        named = value("cli_name") or "--" + field.name.replace("_", "-")
        spellings = (named, *(value("aliases") or ()))
        text = self.text(given.get("help"), field.module)
        default = plain(self.field_default(field))
        made = Flag(spellings, field.name, "1", "str", default, (), *from_help(text))
        if "action" in given:
            extra = value("action_kwargs") or {}
            arity = str(extra.get("nargs", "1"))
            yield self.acted(made, ast.unparse(given["action"]), arity, extra.get("new_flag"), text)
            return
        inner = without_none(kind)
        named_type = ast.unparse(inner)
        choices = texts(value("choices"))
        parser = given.get("type_parser")
        if named_type.startswith("Literal["):
            literal = self.package.value(inner.slice, field.module) if isinstance(
                inner, ast.Subscript
            ) else UNKNOWN  # fmt: skip
            literal = literal if isinstance(literal, list) else [literal]
            shape = type(literal[0]).__name__
            yield replace(made, shape=shape, choices=choices or texts(literal))
        elif named_type.lower().startswith("list") and parser is None:
            item = named_type.partition("[")[2].rstrip("]")
            shape = item if item in SCALARS else "str"
            yield replace(made, arity=str(value("nargs") or "+"), shape=shape, choices=choices)
        elif named_type == "bool":
            yield replace(made, arity="0", shape="bool")
        else:
            shape = named_type if named_type in SCALARS else "str"
            shape = shape if parser is None else shape_of(ast.unparse(parser))
            yield replace(made, arity=str(value("nargs") or "1"), shape=shape, choices=choices)

    def text(self, node: ast.expr | None, module: str) -> str:
        found = self.package.value(node, module)
        return found if isinstance(found, str) else ast.unparse(node) if node is not None else ""

    def registered(
        self, function: ast.FunctionDef, module: str, local: dict[str, Any]
    ) -> Iterator[Flag]:
        """From `add_argument` calls of a function, and of those it hands its parser to."""
        local = dict(local)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                local[node.targets[0].id] = self.package.value(node.value, module, local)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                yield self.from_call(node, module, local)
            elif any(isinstance(each, ast.Name) and each.id == "parser" for each in node.args):
                found = self.package.find(ast.unparse(node.func), module)
                generic = "add_cli_args_from_dataclass"
                if found and isinstance(found.node, ast.FunctionDef) and found.node.name != generic:
                    yield from self.registered(found.node, found.module, {})

    def from_call(self, node: ast.Call, module: str, local: dict[str, Any]) -> Flag:
        given = {each.arg: each.value for each in node.keywords}

        def value(name: str) -> Any:
            return self.argument(given.get(name), module, local)

        spellings = tuple(self.text(each, module) for each in node.args)
        longest = next(each for each in spellings if each.startswith("--"))
        name = value("dest") or longest[2:].replace("-", "_")
        help_text = self.text(given.get("help"), module)
        default = plain(value("default"))
        action = ast.unparse(given["action"]) if "action" in given else ""
        arity = str(value("nargs") or "1")
        kind = ast.unparse(given["type"]) if "type" in given else "str"
        choices = texts(value("choices"))
        made = Flag(spellings, name, arity, shape_of(kind), default, choices, *from_help(help_text))
        return self.acted(made, action, arity, value("new_flag"), help_text)

    def argument(self, node: ast.expr | None, module: str, local: dict[str, Any]) -> Any:
        """`ServerArgs.x` is the field's default; what is not known is None."""
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("ServerArgs", "cls"):
            found = self.default_of(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "_declared_default":
            found = self.default_of(self.text(node.args[0], module))
        else:
            found = self.package.value(node, module, local)
        return None if found is UNKNOWN else found

    def acted(self, flag: Flag, action: str, arity: str, today: Any, help_text: str) -> Flag:
        """The flag with what its action does."""
        action = action.strip("'\"").rpartition(".")[2]
        if action in ("", "store", "LoRAPathAction", "append"):
            return flag
        if action in ("store_true", "store_false", "store_const"):
            default = False if flag.default is None and action == "store_true" else flag.default
            return replace(flag, arity="0", shape="bool", default=default)
        if action == "BooleanOptionalAction":
            no = tuple("--no-" + each[2:] for each in flag.spellings)
            return replace(flag, arity="0", shape="bool", spellings=(*flag.spellings, *no))
        if not action.startswith("Deprecated"):
            return replace(flag, arity=arity)
        valued = action == "DeprecatedAliasStoreAction" or flag.choices
        named = today if isinstance(today, str) else flag.today
        state = "stops" if self.stops(action, help_text) else "deprecated"
        made = replace(flag, state=state, today=named, default=None)
        return made if valued else replace(made, arity="0", shape="bool")

    def stops(self, action: str, help_text: str) -> bool:
        """Whether the action of a retired flag raises."""
        found = self.package.find(action, ARGS)
        body = "" if found is None else ast.unparse(found.node)
        return "raise ValueError" in body


def is_description(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) == "Arg"
    return isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)


def without_none(kind: ast.expr) -> ast.expr:
    """`X` of `Optional[X]` and `X | None`."""
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) in ("Optional", "Union"):
        parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        others = [each for each in parts if ast.unparse(each) != "None"]
        return others[0] if len(others) == 1 else kind
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        parts = [kind.left, kind.right]
        others = [each for each in parts if ast.unparse(each) != "None"]
        return without_none(others[0]) if len(others) == 1 else kind
    return kind


def shape_of(kind: str) -> str:
    kind = kind.strip("'\"")
    return kind if kind in SCALARS else TYPES.get(kind, "bool" if kind == "bool" else "str")


def from_help(text: str) -> tuple[str, str]:
    """(state, the flag named instead) of a flag whose help begins by calling it deprecated."""
    start = text.lower().lstrip("[(* ")
    if not start.startswith(("deprecated", "note: --")) or "deprecated" not in start[:80]:
        return "", ""
    words = (word.strip("`'\".,;)(").partition("=")[0] for word in text.split())
    own = text[: text.lower().index("deprecated")]
    flags = [word for word in words if word.startswith("--") and word not in own]
    return "deprecated", flags[0] if flags else ""


def texts(values: Any) -> tuple[str, ...]:
    """Choices as they are typed; none if they are not known."""
    if not isinstance(values, list | tuple):
        return ()
    named = (each.value if isinstance(each, Member) else each for each in values)
    return tuple(dict.fromkeys(str(each) for each in named if each is not None))


def plain(value: Any) -> Any:
    """As JSON has it; None if it is not known."""
    if isinstance(value, Member):
        return plain(value.value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bool | int | float | str):
        return value
    return None
