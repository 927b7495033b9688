"""What a start says of how many processes there are, and of drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_toy import write_toy_llama

from vivace.config.parsing import parse
from vivace.launch.configure import configure
from vivace.launch.summary import drafts, processes
from vivace.protocol.messages import Capacity

CAPACITY = Capacity(pages=8, page_size=16, rows=4, context=64, vocabulary=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--tp-size 2", "2 ranks of each engine"),
        ("--tp-size 2 --pp-size 2", "4 ranks of each engine"),
        ("--tp-size 4 --dp-size 2 --enable-dp-attention", "2 ranks of each engine"),
        ("--dp-size 2", "2 engines"),
        ("--tp-size 2 --dp-size 2 --enable-dp-attention", "2 engines"),
    ],
)
def test_ranks_are_those_of_an_engine(folder: Path, flags: str, said: str) -> None:
    words = ["--model-path", str(folder), "--skip-tokenizer-init", *flags.split()]
    ((_, text),) = processes(configure(parse(words, {})))
    assert text.startswith(said) or f"; {said}" in text
    assert ("ranks" in said) == ("ranks" in text)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", []),
        ("--speculative-algorithm NGRAM", ["NGRAM, at most 11 tokens in a step"]),
        (
            "--speculative-algorithm STANDALONE --speculative-draft-model-path {} "
            "--speculative-fixed-width",
            ["STANDALONE of {}, always 3 tokens in a step"],
        ),
    ],
)
def test_drafts_are_told(folder: Path, flags: str, said: list[str]) -> None:
    words = [word.format(folder) for word in f"--model-path {{}} {flags}".split()]
    config = configure(parse([*words, "--skip-tokenizer-init"], {}))
    found = [text for _, text in drafts(config, CAPACITY)]
    assert found == [text.format(folder) for text in said]
