"""The tables of SGLang: read from source that is never run, and read as argparse does."""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_tables import PARTS, RELEASES, TABLES
from source_constants import Package

from vivace.config.releases.tables import (
    FOLDER,
    flags_at,
    holds,
    latest,
    readers,
    release_names,
    releases,
    span,
    status,
    successor,
    takers,
)

EXCERPTS = Path(__file__).parent / "released"
LARGEST = 600_000
"""bytes of all tables together"""


def wheel(folder: Path, excerpt: str) -> Path:
    """A wheel of the files of an excerpt."""
    made = folder / f"sglang-{excerpt}-py3-none-any.whl"
    source = EXCERPTS / excerpt
    with zipfile.ZipFile(made, "w") as archive:
        for path in source.rglob("*.txt"):
            name = path.relative_to(source).with_suffix(".py")
            archive.write(path, f"sglang/srt/{name.as_posix()}")
    return made


@pytest.mark.parametrize("excerpt", ["calls", "annotated"])
def test_a_release_is_read_from_its_source(excerpt: str, tmp_path: Path) -> None:
    """Both ways SGLang has declared its arguments; the files would raise if they were run."""
    package = Package.of(wheel(tmp_path, excerpt), "sglang")
    for part, read in PARTS.items():
        made = TABLES[part]({excerpt: read(package)})
        assert made == (EXCERPTS / f"{excerpt}.{part}.json").read_text(), part


def rows_at(text: str, part: str, release: str) -> list[list[Any]]:
    """The rows of a table that hold in a release, with what rows share written out."""
    table = json.loads(text)
    at, choices = table["releases"].index(release), table.get("choices", [])
    conditions = table.get("conditions", [])
    rows = [row[:-1] for row in table[part] if holds(tuple(row[-1]), at)]
    if choices:
        rows = [[*row[:5], None if row[5] is None else choices[row[5]], *row[6:]] for row in rows]
    if conditions:
        rows = [[*row[:3], [conditions[place] for place in row[3]]] for row in rows]
    return sorted(rows, key=json.dumps)


WHEELS = "VIVACE_SGLANG_WHEELS"
"""names a folder of wheels of sglang, as `tools/sglang_tables.py FOLDER --fetch` makes it"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS)
def test_real_releases_are_in_the_tables_as_they_are_read(part: str) -> None:
    folder = os.environ.get(WHEELS, "")
    wheels = sorted(Path(folder).glob("sglang-*.whl")) if folder else []
    if not wheels:
        pytest.skip(f"{WHEELS} names no folder with wheels of sglang")
    text = (Path(FOLDER) / f"{part}.json").read_text()
    for path in wheels:
        release = path.name.split("-")[1]
        made = TABLES[part]({release: PARTS[part](Package.of(path, "sglang"))})
        assert rows_at(made, part, release) == rows_at(text, part, release), release


def test_the_tables_are_small_and_of_every_release() -> None:
    files = [Path(FOLDER) / f"{name}.json" for name in TABLES]
    assert sum(file.stat().st_size for file in files) < LARGEST
    for file in files:
        table = json.loads(file.read_text())
        assert tuple(table["releases"]) == releases() == tuple(RELEASES)
        for row in table[file.stem]:
            held: list[int] = row[-1]
            assert held == sorted(held) and held[0] >= 0 and held[-1] < len(RELEASES)


@pytest.mark.parametrize(
    ("release", "spellings"), [("0.4.6", 128), ("0.5.7", 321), ("0.5.8", 336), ("0.5.23", 559)]
)
def test_releases_have_as_many_spellings_as_their_source(release: str, spellings: int) -> None:
    """Counted by hand in `server_args.py`; `--no-x` of a two-way switch counts."""
    assert len(flags_at(release)) == spellings


def build_parser(release: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    for row in {id(row): row for row in flags_at(release).values()}.values():
        made.add_argument(*row.spellings.split(" "), dest=row.name, action="append", nargs="*")
    return made


PARSERS = {release: build_parser(release) for release in ("0.4.6", "0.5.10", "0.5.23")}
TYPED = sorted({flag for release in PARSERS for flag in flags_at(release)})


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PARSERS)), st.sampled_from(TYPED), st.integers(3, 60))
def test_abbreviations_are_read_as_argparse_reads_them(release: str, flag: str, cut: int) -> None:
    typed = flag[:cut]
    kind, names = status(typed, release)
    found: list[Any] = PARSERS[release]._get_option_tuples(typed)  # pyright: ignore
    expected = {
        "known": len(names) == 1 and names[0] == typed,
        "short": [each[1] for each in found] == list(names),
        "ambiguous": sorted(each[1] for each in found) == list(names) and len(names) > 1,
        "unknown": not found,
    }
    assert expected[kind]


def test_what_became_of_flags_is_known() -> None:
    assert span(takers("--cuda-graph-bs")) == "0.4.6 to 0.5.19"
    assert successor("--cuda-graph-bs", latest()) == "--cuda-graph-bs-decode"
    assert successor("--nsa-prefill-backend", latest()) == "--dsa-prefill-backend"
    assert successor("--enable-dp-attention", latest()).startswith("--attn-dp-size")
    assert successor("--enable-nan-detection", latest()) == ""
    assert "0.5.7" in readers("SGL_CPU_QUANTIZATION") and readers("SGLANG_DP_ROUND_ROBIN") == []


@given(st.lists(st.integers(0, 63), unique=True, min_size=1, max_size=12).map(sorted))
def test_spans_name_the_releases_they_hold(at: list[int]) -> None:
    names = [releases()[each] for each in at]
    told = [part.split(" to ") for part in span(names).split(" and ")]
    ends = [(releases().index(part[0]), releases().index(part[-1])) for part in told]
    held = tuple(end for pair in ends for end in pair)
    assert release_names(held) == names and all(holds(held, each) for each in at)
