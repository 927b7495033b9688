"""American spelling, in the words of the package, its documents and its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("vivace", "docs", "tests", "examples", ".")
TEXTS = {".py", ".md", ".json", ".h", ".cpp", ".inc", ".sh", ".toml", ".yml"}
OTHERS_WORDS = ("tests/deploy/published", "tests/deploy/scripts")
"""files that others wrote"""

OUR = "arm behavi col endeav fav flav harb hon hum lab neighb rum sav vap vig"
ISE = (
    "author apolog capital categor character custom dequant emphas final formal general harmon "
    "initial local material maxim memor minim normal optim organ parallel penal priorit quant real "
    "recogn sanit serial special stabil standard summar synchron token unauthor unif util vector "
    "visual"
)
WORDS = (
    "analyse analysed analysing artefact artefacts catalyse centre centred centres defence fibre "
    "fulfil fulfilment grey labelled labelling learnt licence litre metre misspelt modelled "
    "modelling offence spelt theatre towards travelled whilst"
)
STABLE = re.compile(r"draft-quantisation|fused-mode-quantised|[\"`]quantisation[\"`]")
"""ids of rules, which scripts read"""
BRITISH = re.compile(
    rf"(?:{'|'.join(OUR.split())})our(?:s|ed|ing|able|ite|hood|ful|al|less)?(?!(?-i:[a-z]))"
    rf"|(?:{'|'.join(ISE.split())})is(?:e|es|ed|er|ers|ing|ation|ations|able)(?!(?-i:[a-z]))"
    rf"|(?<![a-z])(?:{'|'.join(WORDS.split())})(?!(?-i:[a-z]))",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z]+")


def texts(folder: str) -> Iterator[Path]:
    if folder == ".":
        yield from ROOT.glob("*.md")
        return
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in TEXTS and path.is_file() and path != Path(__file__):
            yield path


@pytest.mark.parametrize("folder", FOLDERS)
def test_words_are_spelled_as_americans_do(folder: str) -> None:
    found = []
    for path in texts(folder):
        name = str(path.relative_to(ROOT))
        text = path.read_text()
        # Most files have none: their words, each once, are searched faster than their lines.
        if not name.startswith(OTHERS_WORDS) and BRITISH.search(" ".join(set(WORD.findall(text)))):
            for number, line in enumerate(text.splitlines(), 1):
                found += [
                    f"{name}:{number} {word[0]}" for word in BRITISH.finditer(STABLE.sub("", line))
                ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "british"),
    [
        ("Colour", True),
        ("PenaliseArgs", True),
        ("neighbours", True),
        ("unquantised", True),
        ("initialisation", True),
        ("my_favourite", True),
        ("test_beside_any_neighbour", True),
        ("four hours", False),
        ("precise, raised, otherwise, promises, emphasis", False),
        ("analysis, catalogue, labels", False),
        ("organism, realistic", False),
    ],
)
def test_the_list_knows(text: str, british: bool) -> None:
    assert bool(BRITISH.search(text)) is british
