"""`vivace flags`: every flag, its default, and what it does on a platform."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from vivace.arguments import ArgumentParser
from vivace.config.option import DEFAULT_PLATFORM, PLATFORMS
from vivace.config.sglang import RETIRED
from vivace.config.table import FlagRow, flag_table, render_text
from vivace.terminal import print_wrapped

NO_MATCH = 1


def main(words: list[str]) -> int:
    """0; 1 when no flag is what was asked for."""
    chosen = parse_arguments(words)
    search = chosen.search or chosen.text
    works = (chosen.platform or DEFAULT_PLATFORM) if chosen.works else None
    rows = list(flag_table(chosen.platform, search, works))
    retired = [] if chosen.json or works or not search else list(retired_lines(search))
    if not rows and not retired:
        limits = [f"mentions {search!r}"] if search else []
        limits += [f"works on {works}"] if works else []
        print_wrapped(f"vivace flags: no flag {' and '.join(limits)}")
        return NO_MATCH
    if chosen.json:
        print(json.dumps([flag_json(row) for row in rows], indent=1))
        return 0
    if rows:
        print_wrapped(render_text(rows, chosen.platform), sys.stdout)
    for line in retired:
        print_wrapped(line, sys.stdout)
    return 0


def retired_lines(search: str) -> Iterator[str]:
    """Flags of older releases, and misspelled ones, that are taken for others."""
    for name, flag in RETIRED.items():
        words = " ".join(flag.today).format(tp="TP_SIZE")
        if search.lower() in name:
            yield f"{name} is taken for {words or 'nothing'}: {flag.why}"


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = ArgumentParser(
        prog="vivace flags", description="Every flag, its default, and what it does on a platform."
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="only flags that mention TEXT")
    parser.add_argument("--search", metavar="TEXT", help="the same")
    parser.add_argument("--platform", choices=PLATFORMS, help="one platform only")
    parser.add_argument(
        "--works", action="store_true", help="only flags that work on the platform (default: cpu)"
    )
    parser.add_argument("--json", action="store_true", help="a list of objects, for programs")
    chosen = parser.parse_args(words)
    if chosen.text and chosen.search:
        parser.error("TEXT and --search TEXT mean the same: give one")
    return chosen


def flag_json(row: FlagRow) -> dict[str, object]:
    """Keys: flags, subsystem, values (a kind or the choices), default, meaning, platforms (name ->
    {state: works, no effect, not available; text})."""
    option = row.option
    return {
        "flags": list(option.flags),
        "subsystem": option.slice_name,
        "values": list(option.choices) if option.choices else row.kind,
        "default": option.default,
        "meaning": option.help,
        "platforms": {
            name: {"state": option.states[name].kind.value, "text": text}
            for name, text in row.states.items()
        },
    }
