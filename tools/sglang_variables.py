"""The environment variables that one release of SGLang reads, from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from source_constants import Package, parsed

ENVIRON = "sglang/srt/environ.py"
LEGACY, LEGACY_PREFIX = "SGL_*", 'startswith("SGL_")'
"""the row that stands for: SGL_X is taken for SGLANG_X"""
ENVIRON_MODULE = "sglang.srt.environ"
NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
QUOTED = re.compile(r"""["']((?:SGLANG|SGL)_[A-Z0-9_]*[A-Z0-9])["']""")
WORD = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
ANY_READ = re.compile(r"\benviron\b|getenv|[a-z]_env\(|env_[a-z]+\(\s*['\"][A-Z]|_lazy_")
C_READS = re.compile(r"""(?:getenv|env::var(?:_os)?|get_bool_env)\(\s*"([A-Z][A-Z0-9_]+)""")
READERS = re.compile(r"(?:^|\.)(?:getenv|environ\.(?:get|pop|setdefault)|env\.get)$|env|^_lazy_")
KINDS = {
    "Bool": "switch",
    "Int": "whole number",
    "Float": "number",
    "bool": "switch",
    "int": "whole number",
    "float": "number",
}
"""part of a reader's name -> what it makes of the text"""


@dataclass(frozen=True)
class Variable:
    """`kind`: switch, whole number, number, text, or empty if several readers disagree; `state`:
    "", "deprecated", or "unread" if it is declared and nothing asks for it; `today`: what the
    release names instead."""

    name: str
    kind: str = ""
    default: Any = None
    state: str = ""
    today: str = ""


def variables_of(package: Package) -> list[Variable]:
    """In the order of their names."""
    kinds: dict[str, set[str]] = {}
    for name, kind in reads(package):
        kinds.setdefault(name, set()).add(kind)
    known = {name: Variable(name, only(found - {""})) for name, found in kinds.items()}
    declared = dict(declarations(package))
    known |= declared
    for name, today in deprecations(package):
        known[name] = replace(known.get(name, Variable(name)), state="deprecated", today=today)
    if LEGACY_PREFIX in package.files.get(ENVIRON, "").replace("'", '"'):
        known[LEGACY] = Variable(LEGACY)
    used = words_outside(package)
    for name, each in declared.items():
        if name not in used and not known[name].state:
            known[name] = replace(each, state="unread")
    return [each for _, each in sorted(known.items())]


def only(kinds: set[str]) -> str:
    return kinds.pop() if len(kinds) == 1 else ""


def reads(package: Package) -> Iterator[tuple[str, str]]:
    """(name, kind) of every read."""
    for path, text in package.files.items():
        yield from reads_of_file(text, path.endswith(".py"))


@cache
def reads_of_file(text: str, python: bool) -> tuple[tuple[str, str], ...]:
    """Of names with SGLang's prefix, wherever they are a string. Releases share most files."""
    if not python:
        return tuple((name, "") for name in C_READS.findall(text))
    tree = parsed(text) if ANY_READ.search(text) else None
    found = [each for node in ast.walk(tree) for each in reads_of(node)] if tree else []
    return (*found, *((name, "") for name in QUOTED.findall(text)))


def nodes(package: Package, module: str) -> Iterator[ast.AST]:
    tree = package.tree(module)
    return iter(()) if tree is None else ast.walk(tree)


def reads_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Call):
        name = constant(node.args[0]) if node.args else ""
        if name and READERS.search(function := dotted(node.func)):
            yield name, kind_of(function)
    elif isinstance(node, ast.Subscript | ast.Compare):
        subscript = isinstance(node, ast.Subscript)
        asked, holder = (node.slice, node.value) if subscript else (node.left, node.comparators[0])
        if (name := constant(asked)) and dotted(holder).endswith("environ"):
            yield name, ""


def dotted(node: ast.expr) -> str:
    """`os.environ.get`; empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def constant(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and NAME.fullmatch(value) else ""


def kind_of(function: str) -> str:
    return next((kind for part, kind in KINDS.items() if part in function.rpartition(".")[2]), "")


def declarations(package: Package) -> Iterator[tuple[str, Variable]]:
    """Fields of `Envs`, as `NAME = EnvInt(128)`."""
    for node in nodes(package, ENVIRON_MODULE):
        if not (isinstance(node, ast.ClassDef) and node.name == "Envs"):
            continue
        for each in node.body:
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
                name = ast.unparse(each.targets[0])
                kind = kind_of(ast.unparse(each.value.func)) or "text"
                first = each.value.args[0] if each.value.args else None
                default = package.value(first, ENVIRON_MODULE)
                default = default if isinstance(default, bool | int | float | str) else None
                yield name, Variable(name, kind, default)


def deprecations(package: Package) -> Iterator[tuple[str, str]]:
    """(name, what to use instead) as environ.py says it, in any of its four forms."""
    for node in nodes(package, ENVIRON_MODULE):
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            words = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
            if function == "_print_deprecated_env" and len(words) == 2:
                yield words[1], words[0]
            elif function == "_warn_deprecated_env_to_cli_flag":
                yield words[0], flag_in(ast.unparse(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if "deprecated" in ast.unparse(target).lower():
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    name = constant(key) if key is not None else ""
                    if name:
                        yield name, instead(value)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "deprecated_name" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value), ast.unparse(node.targets[0])


def instead(node: ast.expr) -> str:
    """The name or flag of a `_DeprecatedEnv`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Call):
        for each in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if constant(each):
                return constant(each)
    return flag_in(ast.unparse(node))


def flag_in(text: str) -> str:
    found = re.search(r"--[a-z][a-z0-9-]+", text)
    return found.group() if found else ""


def words_outside(package: Package) -> set[str]:
    """Every name that stands anywhere but in environ.py."""
    texts = (text for path, text in package.files.items() if path != ENVIRON)
    return {word for text in texts for word in words(text)}


@cache
def words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text))
