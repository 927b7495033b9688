"""Links and paths in the documents lead somewhere, and the site has every page."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from vivace.config.command_line import parse_values
from vivace.deploy.rules import environment

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), ROOT / "examples" / "README.md"]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|sh|md|cpp|h|inc|json|txt|lock|yaml|yml))?)`")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: as GitHub and mkdocs both do it."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in plain}


def dead_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{link}: the page has no such heading"
        elif page.parent == DOCS and DOCS not in target.parents:
            yield f"{link}: leaves docs/, where the site cannot follow"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    assert not list(dead_links(page))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_paths_are_those_of_the_tree(page: Path) -> None:
    """A path in backticks is of the repository or of the package."""
    folders = {path.name for base in (ROOT, ROOT / "vivace") for path in base.iterdir()}
    missing = [
        path
        for path in PATH.findall(prose(page))
        if path.split("/")[0] in folders - {"build"}
        and not any((base / path).exists() for base in (ROOT, ROOT / "vivace"))
    ]
    assert not missing, f"renamed or gone, mend the page: {missing}"


def serve_commands(page: Path) -> Iterator[list[str]]:
    """The words behind `vivace serve` in blocks, without what a shell does with them."""
    for block in FENCE.finditer(page.read_text()):
        for line in block[0].replace("\\\n", " ").splitlines():
            begun = re.match(r"(?:\S*/)?vivace serve\b(.*)", line.strip())
            if begun is not None:
                yield shlex.split(re.split(r" [&|>#\[]|\.\.\.", begun[1])[0])


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_servers_start_as_pages_write_it(page: Path) -> None:
    for words in serve_commands(page):
        parse_values(words, "vivace serve")


def test_the_site_has_every_page() -> None:
    def pages(nav: object) -> Iterator[str]:
        if isinstance(nav, str):
            yield nav
        for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
            yield from pages(each)

    shown = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(shown) == sorted(page.name for page in DOCS.glob("*.md")), "nav of mkdocs.yml"


def test_the_example_of_a_rule_is_one() -> None:
    """CONTRIBUTING shows a rule as it would stand in a module of vivace/deploy/rules/."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    tree = ast.parse(textwrap.dedent(code))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assert {node.id for node in names} - own <= {*vars(environment), *dir(builtins)}


def test_the_glossary_names_what_there_is() -> None:
    """The first column: names and files of today."""
    files = [path for path in (ROOT / "vivace").rglob("*.*") if "__pycache__" not in path.parts]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".inc", ".h", ".cpp")]
    there = {word for text in texts for word in re.findall(r"\w+", text)}
    there |= {part for path in files for part in path.relative_to(ROOT).parts}
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"[\w.]*\w", row.replace("/", " "))}
    gone = [word for word in named if not {*re.findall(r"\w+", word.removesuffix(".py"))} <= there]
    assert len(rows) > 200 and not [word for word in gone if word not in there]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_there_are_as_many_rules_as_pages_say(page: Path) -> None:
    count = re.search(r"^(\d+) rules\.$", (DOCS / "rules.md").read_text(), re.MULTILINE)
    said = re.findall(r"more than (\d+)\s+rules", prose(page))
    assert count is not None and all(int(number) < int(count[1]) for number in said)
