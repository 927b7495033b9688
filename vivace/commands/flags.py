"""`vivace flags`: every flag, its default, and what it does on a platform."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from vivace.arguments import ArgumentParser
from vivace.config.command_line import unknown_text
from vivace.config.config import all_options
from vivace.config.option import ABSENT, DEFAULT_PLATFORM, PLATFORMS, Support
from vivace.config.sglang import RETIRED
from vivace.config.table import FlagRow, flag_table, render_text
from vivace.errors import nearest
from vivace.terminal import print_wrapped

NO_MATCH = 1


def main(words: list[str]) -> int:
    """0; 1 when no flag is what was asked for."""
    chosen = parse_arguments(words)
    search = chosen.search or chosen.text
    works = (chosen.platform or DEFAULT_PLATFORM) if chosen.works else None
    rows = asked_rows(chosen.platform, search)
    fitting = [row for row in rows if works is None or works_on(row, works)]
    retired = [] if chosen.json or works or not search else list(retired_lines(search))
    if not fitting and not retired:
        print_wrapped("\n".join(why_none(search, rows, works)))
        return NO_MATCH
    if chosen.json:
        print(json.dumps([flag_json(row) for row in fitting], indent=1))
        return 0
    for line in retired:
        print_wrapped(line, sys.stdout)
    if fitting:
        print_wrapped("\n" * bool(retired) + render_text(fitting, chosen.platform), sys.stdout)
    return 0


def asked_rows(platform: str | None, search: str | None) -> list[FlagRow]:
    """The flag of exactly this spelling; else all that mention it, and those that a retired
    spelling which does is taken for."""
    every = list(flag_table(platform))
    if search is None:
        return every
    exact = [row for row in every if search in row.option.flags]
    if exact:
        return exact
    today = {word for name in retired_flags(search) for word in RETIRED[name].today}
    mention = {row.option.name for row in flag_table(platform, search)}
    return [row for row in every if row.option.name in mention or today & {*row.option.flags}]


def works_on(row: FlagRow, platform: str) -> bool:
    return row.option.states[platform].kind is Support.WORKS


def why_none(search: str | None, rows: list[FlagRow], works: str | None) -> Iterator[str]:
    """Why nothing is shown: there is no such flag, or none of `rows` works on a platform."""
    if rows and search:
        for row in rows:
            yield f"{row.option.flags[0]} on {works}: {row.option.states[str(works)].text()}"
    elif search and search.startswith("-"):
        yield f"vivace flags: {unknown_text(search)}"
    elif search:
        spelled = f"--{search.replace('_', '-')}"
        near = nearest(spelled, (flag for option in all_options() for flag in option.flags))
        yield f"vivace flags: no flag mentions {search!r}{near}"
    else:
        yield f"vivace flags: no flag works on {works}: {ABSENT[str(works)].text()}"


def retired_flags(search: str) -> list[str]:
    """Flags of older releases, and misspelled ones, that are taken for others."""
    return [search] if search in RETIRED else [name for name in RETIRED if search.lower() in name]


def retired_lines(search: str) -> Iterator[str]:
    for name in retired_flags(search):
        flag = RETIRED[name]
        words = " ".join(flag.today).format(tp="TP_SIZE")
        effect = f"is taken for {words}" if words else "has no effect"
        yield f"{name} {effect}: {flag.why}"


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = ArgumentParser(
        prog="vivace flags", description="Every flag, its default, and what it does on a platform."
    )
    parser.add_argument(
        "text", nargs="?", metavar="TEXT", help="a flag as it is typed, or what flags mention"
    )
    parser.add_argument("--search", metavar="TEXT", help="the same")
    parser.add_argument("--platform", choices=PLATFORMS, help="one platform only")
    parser.add_argument(
        "--works", action="store_true", help="only flags that work on the platform (default: cpu)"
    )
    parser.add_argument("--json", action="store_true", help="a list of objects, for programs")
    chosen, stray = parser.parse_known_args(words)
    if stray:
        take_spelling(parser, chosen, stray)
    if chosen.text and chosen.search:
        parser.error("TEXT and --search TEXT mean the same: give one")
    return chosen


def take_spelling(parser: ArgumentParser, chosen: argparse.Namespace, stray: Sequence[str]) -> None:
    """`vivace flags --port` asks about --port."""
    known = {*RETIRED, *(flag for option in all_options() for flag in option.flags)}
    flag = stray[0].partition("=")[0]
    if flag not in known and nearest(flag, parser.flags(), 0.75):
        parser.refuse(stray, known)
    if len(stray) > 1 or chosen.text:
        parser.error(f"{flag}: ask about one flag at a time, without a value")
    chosen.text = flag


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
