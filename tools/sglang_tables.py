"""Makes vivace/config/releases/*.json: the flags and variables of SGLang, release by release.

    python tools/sglang_tables.py WHEELS [--fetch]

WHEELS is a folder of wheels of sglang (0.4.6 and later; anywhere but in this repository); --fetch
downloads those that are missing, with pip. Nothing of a wheel is imported or run:
`source_constants.py` reads it with `ast`. Each wheel takes some seconds; what was read is kept
beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_flags import Flag, FlagReader
from sglang_rewrites import Rewrite, RewriteReader
from sglang_variables import Variable, variables_of
from source_constants import Package

DATA = Path(__file__).resolve().parents[1] / "vivace/config/releases"
RELEASES = """
0.4.6 0.4.6.post1 0.4.6.post2 0.4.6.post3 0.4.6.post4 0.4.6.post5 0.4.7 0.4.7.post1 0.4.8
0.4.8.post1 0.4.9 0.4.9.post1 0.4.9.post2 0.4.9.post3 0.4.9.post4 0.4.9.post5 0.4.9.post6 0.4.10
0.4.10.post1 0.4.10.post2 0.5.0rc0 0.5.0rc1 0.5.0rc2 0.5.1 0.5.1.post1 0.5.1.post2 0.5.1.post3
0.5.2 0.5.3 0.5.3.post1 0.5.3.post2 0.5.3.post3 0.5.4 0.5.4.post1 0.5.4.post2 0.5.4.post3 0.5.5
0.5.5.post1 0.5.5.post2 0.5.5.post3 0.5.6 0.5.6.post1 0.5.6.post2 0.5.7 0.5.8 0.5.8.post1 0.5.9
0.5.10 0.5.10.post1 0.5.11 0.5.12 0.5.12.post1 0.5.13 0.5.13.post1 0.5.14 0.5.15 0.5.15.post1
0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22 0.5.23
""".split()
"""in the order in which their numbers rise; add new ones at the end"""


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Tables of flags and variables, from wheels.")
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--fetch", action="store_true", help="download wheels that are missing")
    chosen = parser.parse_args(words)
    if chosen.fetch:
        fetch(chosen.wheels)
    read = {release: read_kept(wheel_of(release, chosen.wheels)) for release in RELEASES}
    for name, make in TABLES.items():
        rows = {release: each[name] for release, each in read.items()}
        (DATA / f"{name}.json").write_text(make(rows))


def fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    pip += ["--only-binary=:all:", "--python-version", "3.12", "--dest", str(folder)]
    for release in RELEASES:
        if not list(folder.glob(f"sglang-{release}-*.whl")):
            subprocess.run([*pip, f"sglang=={release}"], check=True)


def wheel_of(release: str, folder: Path) -> Path:
    found = sorted(folder.glob(f"sglang-{release}-*.whl"))
    if not found:
        raise SystemExit(f"{folder}: no wheel of sglang {release}; --fetch downloads it")
    return found[0]


def read_kept(wheel: Path) -> dict[str, Any]:
    """What was read of a wheel, from the file beside it as far as it is there."""
    kept = wheel.with_suffix(".json")
    found = json.loads(kept.read_text()) if kept.exists() else {}
    if set(PARTS) - set(found):
        package = Package.of(wheel, "sglang")
        found |= {name: part(package) for name, part in PARTS.items() if name not in found}
        kept.write_text(json.dumps(found))
        print(wheel.name, flush=True)
    return found


def rows_of(items: Iterable[Flag | Variable | Rewrite]) -> list[dict[str, Any]]:
    """As JSON has it: tuples are lists."""
    return json.loads(json.dumps([asdict(each) for each in items]))


PARTS: dict[str, Callable[[Package], list[dict[str, Any]]]] = {
    "flags": lambda package: rows_of(FlagReader(package).flags()),
    "variables": lambda package: rows_of(variables_of(package)),
    "rewrites": lambda package: rows_of(RewriteReader(package).rewrites()),
}


def flag_table(releases: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """One line for each definition of a flag, with the ranges of releases that have it."""
    choices: dict[str, int] = {}

    def row(flag: Mapping[str, Any]) -> list[Any]:
        listed = json.dumps(flag["choices"])
        known = choices.setdefault(listed, len(choices)) if flag["choices"] else None
        values = [flag[name] for name in ("arity", "shape", "default")]
        return [
            " ".join(flag["spellings"]), flag["name"], *values, known, flag["state"], flag["today"],
        ]  # fmt: skip

    rows = ranged({release: [row(each) for each in flags] for release, flags in releases.items()})
    return table(releases, "flags", rows, [json.loads(each) for each in choices])


def variable_table(releases: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    names = ("name", "kind", "default", "state", "today")
    rows = ranged(
        {
            release: [[each[name] for name in names] for each in variables]
            for release, variables in releases.items()
        }
    )
    return table(releases, "variables", rows, None)


def rewrite_table(releases: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """Conditions stand once, in a list of their own; a row has their places in it."""
    conditions: dict[str, int] = {}

    def row(rewrite: Mapping[str, Any]) -> list[Any]:
        texts = (json.dumps(each) for each in rewrite["conditions"])
        places = [conditions.setdefault(each, len(conditions)) for each in texts]
        return [*(rewrite[name] for name in ("name", "value", "formula")), places]

    rows = ranged({release: [row(each) for each in found] for release, found in releases.items()})
    return table(releases, "rewrites", rows, [json.loads(each) for each in conditions], CONDITIONS)


CONDITIONS = "conditions"
TABLES = {"flags": flag_table, "variables": variable_table, "rewrites": rewrite_table}


def ranged(releases: Mapping[str, Iterable[list[Any]]]) -> list[list[Any]]:
    """Each distinct row once, by its first two columns, with [first, last, first, last ...] of the
    releases that have it behind it."""
    places: dict[str, list[int]] = {}
    for at, rows in enumerate(releases.values()):
        for row in rows:
            held = places.setdefault(json.dumps(row), [])
            if held and held[-1] in (at - 1, at):
                held[-1] = at
            else:
                held += [at, at]
    rows = [[*json.loads(row), held] for row, held in places.items()]
    return sorted(rows, key=lambda row: (row[0].split()[0], row[-1]))


def table(
    releases: Iterable[str],
    name: str,
    rows: list[list[Any]],
    shared: list[Any] | None,
    shared_name: str = "choices",
) -> str:
    """JSON with one row a line."""
    lines = ["{", f'"releases": {compact(list(releases))},']
    if shared is not None:
        lines += [f'"{shared_name}": [', ",\n".join(map(compact, shared)), "],"]
    lines += [f'"{name}": [', ",\n".join(map(compact, rows)), "]", "}"]
    return "\n".join(lines) + "\n"


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
