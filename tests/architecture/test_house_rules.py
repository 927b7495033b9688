"""The rules of docs/architecture.md that a machine can check."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vivace"
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {("torch", "load"), ("os", "system"), ("os", "popen"), ("yaml", "load")}
BANNED_WORDS = ("Manager", "Helper", "Utils", "V2", "Mixin")
PRIVATE_WORDS = frozenset(
    "Roster Gatekeeper Suspects Lookout Piece Pieces Asks Asking Answering Wishes Bit Told "
    "Shown Made Said Opened Found Surroundings Pulse Verdict Charges Procedure Dialects "
    "Walk World Ways Outlet Refusal Gathering Draft Flight Live Slots Draws Drawing "
    "Shelf Workplace Tooled Asked Holding Scaled Cuts Fetched "
    "Where Imported Collected Folded Wanted Inner Unreadable Checked Plain Blocks OneOfEach "
    "Pace Lane LedgerGap DeadlyRequests Whole Several Tried Cached Loaded Rendered Refused Retired "
    "Running Timed Down".split()
)
"""that this project once used for what SGLang and vLLM call otherwise"""
DEVICES = frozenset({"cpu", "cuda", "npu"})


def parsed(files: Iterable[Path] = FILES) -> Iterator[tuple[Path, ast.Module]]:
    for file in files:
        yield file.relative_to(ROOT), read_tree(file)


@cache
def read_tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in nodes(tree) if isinstance(node, ast.Call))


def dotted(node: ast.expr) -> tuple[str, str] | None:
    """("torch", "load") for the expression `torch.load`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return None


def test_nothing_executable_from_outside() -> None:
    found = []
    for file, tree in parsed():
        for line, name in imported_modules(tree):
            if name.split(".")[0] in FORBIDDEN_MODULES:
                found.append(f"{file}:{line} imports {name}")
        for call in calls(tree):
            target = call.func
            if isinstance(target, ast.Name) and target.id in FORBIDDEN_CALLS:
                found.append(f"{file}:{call.lineno} calls {target.id}")
            if dotted(target) in FORBIDDEN_ATTRIBUTES:
                found.append(f"{file}:{call.lineno} calls {ast.unparse(target)}")
            for keyword in call.keywords:
                is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                if keyword.arg in ("shell", "trust_remote_code") and is_true:
                    found.append(f"{file}:{call.lineno} passes {keyword.arg}=True")
    assert not found, "\n".join(found)


def test_environment_is_read_in_config_only() -> None:
    found = [
        f"{file}:{node.lineno}"
        for file, tree in parsed()
        if file.parts[1] != "config"
        for node in nodes(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv")
        and "/".join(file.parts[1:]) not in ("cli.py", "commands/serve.py", "launch_server.py")
    ]
    assert not found, "\n".join(found)


def test_files_and_functions_stay_readable() -> None:
    found = []
    for file, tree in parsed():
        lines = len((ROOT / file).read_text().splitlines())
        if lines > 400:
            found.append(f"{file}: {lines} lines")
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 50:
                    found.append(f"{file}:{node.lineno} {node.name}: {length} lines")
    assert not found, "\n".join(found)


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for file, tree in parsed():
        yield from ((file, node) for node in nodes(tree) if isinstance(node, ast.ClassDef))


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, set[Path]] = {}
    for file, node in classes():
        places.setdefault(node.name, set()).add(file)
    assert not {name: sorted(map(str, files)) for name, files in places.items() if len(files) > 1}


def test_classes_have_the_words_of_the_field() -> None:
    found = [f"{file}:{node.lineno} {node.name}" for file, node in classes()]
    assert not [place for place in found if place.rpartition(" ")[2] in PRIVATE_WORDS]


PARTICIPLE = re.compile(r"[A-Z][a-z]+(ed|ing)")
NOUNS = frozenset(
    # what layers, lists, remarks and messages are called by everybody
    "Embedding Listing Finding Setting Timing Reading Batching Decoding "
    # messages between processes, which say what has happened
    "Started Serving Draining Unauthorized "
    # a task, which is no participle
    "Embed".split()
)


def test_classes_are_nouns() -> None:
    """A participle alone (`Folded`, `Wanted`) does not say what of."""
    found = [f"{file}:{node.lineno} {node.name}" for file, node in classes()]
    names = [place for place in found if PARTICIPLE.fullmatch(place.rpartition(" ")[2])]
    assert {place.rpartition(" ")[2] for place in names} == NOUNS, names


def test_functions_say_what_they_do() -> None:
    """Not what they belong to: `read_facts`, `local_url`, and no `facts_of`, `url_of`."""
    found = [
        f"{file}:{node.lineno} {node.name}"
        for file, tree in parsed(FILES + TESTS)
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.endswith("_of")
    ]
    assert not found, "\n".join(found)


def test_what_is_missing_is_not_supported_yet() -> None:
    """The house says it everywhere with these words, which a reader can search for."""
    found = [
        f"{file}:{node.lineno}"
        for file, tree in parsed()
        for node in nodes(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"\bin\s+this\s+version\b", node.value)
    ]
    assert not found, "\n".join(found)


def test_only_platforms_ask_which_device_it_is() -> None:
    """Elsewhere a difference between devices is a field of PlatformFacts."""
    found = [
        f"{file}:{node.lineno}"
        for file, tree in parsed()
        if file.parts[1] not in ("platforms", "doctor", "deploy")
        for node in nodes(tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in DEVICES
    ]
    assert not found, "\n".join(found)


def test_only_platforms_reach_into_memory() -> None:
    """Elsewhere a tensor is on some device, and crosses to the host by platforms/host.py. What
    checkpoint/ reads are files, which are on the host."""
    found = []
    for file, tree in parsed():
        if file.parts[1] in ("platforms", "checkpoint"):
            continue
        for node in nodes(tree):
            if not isinstance(node, ast.Attribute):
                continue
            named = node.attr in ("from_numpy", "is_cuda", "is_cpu")
            read = node.attr == "numpy"
            kind = node.attr == "type" and ast.unparse(node.value).endswith("device")
            if named or read or kind:
                found.append(f"{file}:{node.lineno} {ast.unparse(node)}")
    assert not found, "\n".join(found)


def test_names_say_what_things_are() -> None:
    found = [
        f"{file}:{node.lineno} {node.name}"
        for file, tree in parsed()
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef) and any(word in node.name for word in BANNED_WORDS)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "module",
    [
        "vivace.cli",
        "vivace.commands.serve",
        "vivace.config.resolution",
        "vivace.launch.engine_process",
        "vivace.launch.frontend_process",
        "vivace.bench.serving",
        "vivace.bench.scheduler",
    ],
)
def test_import_leaves_torch_out(module: str) -> None:
    """With all that they import; an engine without a model starts so, too."""
    code = (
        f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_nothing_points_outside_the_project() -> None:
    needles = ("../" + "shared", "/work/" + "shared")
    folders = ("vivace", "tests", "docs", "README.md", "Makefile")
    texts = [
        path
        for folder in folders
        for path in ([ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".json", ".toml", "")
    ]
    found = [
        str(path.relative_to(ROOT))
        for path in texts
        if path.is_file() and any(needle in path.read_text(errors="ignore") for needle in needles)
    ]
    assert not found, found


def test_imports_point_the_right_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


FOR_ALL = {
    "arguments",
    "echo",
    "errors",
    "files",
    "registry",
    "system_calls",
    "terminal",
    "version",
}
DOORS_OF_PYTHON = {"__init__", "__main__"}


def rooms() -> Iterator[tuple[set[str], str]]:
    """(packages and modules of a row of the table of the house, what they may import)"""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("| may import |")[2].partition("\n\n")[0]
    modules = {path.stem for path in PACKAGE.iterdir()}
    for row in table.splitlines()[2:]:
        names, _, allowed = (cell.strip() for cell in row.strip("|").split("|"))
        patterns = re.findall(r"`([\w*]+)(?:/|\.py)`", names)
        yield {name for pattern in patterns for name in fnmatch.filter(modules, pattern)}, allowed


def imports_of_rooms() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for file, tree in parsed():
        modules = [name.split(".") for _, name in imported_modules(tree)]
        found.setdefault(file.parts[1].removesuffix(".py"), set()).update(
            parts[1] for parts in modules if parts[0] == "vivace" and len(parts) > 1
        )
    return found


def test_the_page_of_the_house_says_who_imports_whom() -> None:
    imports, named, wrong = imports_of_rooms(), FOR_ALL | DOORS_OF_PYTHON, []
    for names, allowed in rooms():
        named = named | names
        if allowed != "everything":
            listed = set(re.findall(r"(\w+)(?: \([^)]*\))?(?:,|$)", allowed)) - {"ours"}
            real = set().union(*(imports[name] for name in names)) - names - FOR_ALL
            wrong += [f"{sorted(names)}: {name}" for name in sorted(real ^ listed)]
    assert not wrong, "docs/architecture.md and the imports differ: " + "; ".join(wrong)
    assert named == set(imports)


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by their bare names, so two of one name cannot be collected together."""
    names = [file.name for file in (ROOT / "tests").rglob("*.py") if file.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


TYPED = re.compile(r"vivace \w+|make \w+|pip install|git lfs|helm \w+")
"""commands that a message tells to run: names, too"""


def prose(pattern: str) -> list[str]:
    """The plain words of the wordiest alternative; flags, fields, paths, quoted names and what
    stands in a list (`fcfs, lpm`) are none."""
    text = TYPED.sub(" ", re.sub(r"\\[dswb][+*]?|\.[*+]\??", " ", pattern))
    found = (
        [word for word in each.replace("\\", "").split() if re.fullmatch(r"[a-z]{2,}\.?", word)]
        for each in text.split("|")
    )
    return max(found, key=len)


def test_tests_match_names_and_codes_not_prose() -> None:
    """A sentence may be worded anew without breaking tests: `match=` has one plain word at most."""
    found = [
        f"{file}:{keyword.value.lineno} {ast.unparse(keyword.value)}"
        for file, tree in parsed(TESTS)
        for call in calls(tree)
        for keyword in call.keywords
        if keyword.arg == "match"
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Constant) and len(prose(str(part.value))) > 1
    ]
    assert not found, "\n".join(found)


def test_hooks_run_the_tools_of_the_environment_as_make_lint_does() -> None:
    """A commit is made in shells in which the environment is not active."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    assert entries and all(entry.startswith(".venv/bin/") for entry in entries)
    makefile = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    command = next(line for line in makefile.splitlines() if line.startswith("\t.venv/bin/pyright"))
    assert command.strip() in entries
