"""Drafters that installed packages bring, as docs/speculative.md says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from engine_under_test import Setting, build_engine, toy_requests, write_toy_llama

from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.launch.configure import configure
from vivace.launch.node_hello import describe_drafter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "speculative.md"
PLAIN = Setting(batch=4, chunk=64, radix="on", depth=1, page=16)

ODD = """
from vivace.worker.drafter import NoDrafter

class Odd(NoDrafter):
    def __init__(self, width):
        self.width = width

class Shy(Odd):
    def attach(self, place):
        raise RuntimeError("not today")

class Late(Shy):  # nobody can ask it before it is attached
    text_bytes = corpora = nbytes = property(lambda self: self.numbers)

def give_object(config): return object()
def give_narrow(config): return Odd(0)
def give_words(config): return Odd("many")
def give_shy(config): return Shy(3)
def give_late(config): return Late(3)
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's example, installed, and one that is broken."""
    (code,) = re.findall(r"```python\n(# last_token\.py.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "last_token.py").write_text(code)
    about = tmp_path / "last_token-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: last_token\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[vivace.drafters]\nLAST = last_token:build\nBROKEN = last_token:nothing\n"
        "BOOM = boom:build\nFAILS = fails:build\nTWIN = last_token:build\n"
        "OBJECT = odd:give_object\nNARROW = odd:give_narrow\nWORDS = odd:give_words\n"
        "SHY = odd:give_shy\nLATE = odd:give_late\n"
    )
    (tmp_path / "odd.py").write_text(ODD)
    (tmp_path / "boom.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "fails.py").write_text("def build(config):\n    return config.nothing\n")
    about = tmp_path / "another-2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 2.0\n")
    (about / "entry_points.txt").write_text("[vivace.drafters]\nTWIN = another:build\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_example_drafts(tmp_path: Path) -> None:
    model = write_toy_llama(tmp_path / "toy")
    plain = build_engine(model, PLAIN).run(toy_requests(8, stream=False))
    drafting = build_engine(
        model, PLAIN, speculative_algorithm="LAST", speculative_fixed_width=True
    )
    assert drafting.run(toy_requests(8, stream=False)) == plain
    assert drafting.accept_rate() is not None


@pytest.mark.parametrize("name", ["SHY", "LATE"])
def test_one_that_fails_when_it_is_attached_costs_drafts_only(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_toy_llama(tmp_path / "toy")
    plain = build_engine(model, PLAIN).run(toy_requests(8, stream=False))
    shy = build_engine(model, PLAIN, speculative_algorithm=name, speculative_fixed_width=True)
    assert shy.run(toy_requests(8, stream=False)) == plain
    assert "not today" in caplog.text and shy.accept_rate() is None


def test_names_are_those_of_installed_packages(tmp_path: Path) -> None:
    config = configure(parse(["--speculative-algorithm", "LAST"], {}))
    assert config.draft_width == 3 and config.draft is None
    with pytest.raises(ConfigError, match="mean LAST"):
        parse(["--speculative-algorithm", "LASTS"], {})
    with pytest.raises(ConfigError, match="last_token"):
        parse(["--speculative-algorithm", "last_token:build"], {})


@pytest.mark.parametrize("name", ["BROKEN", "BOOM", "FAILS", "TWIN", "OBJECT", "NARROW", "WORDS"])
def test_what_cannot_be_loaded_is_named(tmp_path: Path, name: str) -> None:
    model = write_toy_llama(tmp_path / "toy")
    with pytest.raises(ConfigError, match=name):
        build_engine(model, PLAIN, speculative_algorithm=name)


@pytest.mark.parametrize("test_aid", ["", "0.5"])
def test_stages_hear_of_n_grams_only(test_aid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one would compute other tokens than the last one verifies."""
    algorithm = "NGRAM" if test_aid else "LAST"
    if test_aid:
        monkeypatch.setenv("VIVACE_TEST_DRAFTS", test_aid)
    options = parse(["--speculative-algorithm", algorithm, "--pp-size", "2"], dict(os.environ))
    with pytest.raises(ConfigError, match="stage"):
        configure(options)


def test_a_node_tells_of_the_package() -> None:
    """Ranks that do not draft alike wait for each other for ever."""
    config = configure(parse(["--speculative-algorithm", "LAST"], {}))
    assert describe_drafter(config) == {"drafter LAST": "last_token 1.0"}
    assert not describe_drafter(configure(parse([], {})))
