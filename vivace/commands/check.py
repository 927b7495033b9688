"""`vivace check`: is this deployment valid, and does it fit? Without weights or devices."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from vivace.arguments import ArgumentParser
from vivace.config.process_environment import process_environment
from vivace.deploy.case import Case
from vivace.deploy.files import is_file
from vivace.deploy.load_case import (
    SPECS,
    LoadedDeployment,
    Overrides,
    build_case,
    open_command,
    open_files,
)
from vivace.deploy.rules.judge import ASSUMPTIONS, RULES, CaseResult, ReadFailure, find_rule, judge
from vivace.deploy.rules.rule import Rule
from vivace.deploy.target import parse_release
from vivace.errors import CANNOT_START, CannotStart, cause, exit_code, is_of_output
from vivace.files import write_file
from vivace.terminal import print_wrapped, shorten, shown

if TYPE_CHECKING:
    from vivace.deploy.from_script.script import NothingStarted

PROGRAM = "vivace check"
FORMATS = ("text", "json", "github", "sarif")
FOUND_ERRORS = 1
EPILOG = """examples:
  vivace check deployment.yaml --memory
  vivace check prefill.sh decode.sh --hardware atlas-800i-a3 --cards 32 \\
    --model deepseek-r1
  vivace check --diff 0.5.10 0.5.23 deployment.yaml
  vivace check --target sglang==0.5.10 -- \\
    python -m sglang.launch_server --model-path /m --tp 16
  vivace check --format github --each deployments/*.yaml
"""


def main(words: Sequence[str]) -> int:
    """Exit code, the same in every format. 0: no errors; 1: errors (with --suggest, those that are
    left with its values); 2: the input cannot be read."""
    own, command = split_command(words)
    chosen, stray = parser().parse_known_args(own)
    if stray:
        refuse_stray(stray)
    return exit_code(PROGRAM, lambda: run(chosen, command))


def run(chosen: argparse.Namespace, command: list[str] | None) -> int:
    if chosen.rules or chosen.explain:
        return print_rules(chosen.explain)
    refuse_combinations(chosen)
    if chosen.diff:
        refuse_releases(chosen.diff)
    if chosen.diff or chosen.suggest or chosen.write:
        case = build_case(load_deployment(chosen.files, command), parse_overrides(chosen))
        return (print_difference if chosen.diff else print_suggestions)(case, chosen)
    checked = list(check_all(chosen, command))
    print_report(checked, chosen)
    return worst(checked)


def check_all(
    chosen: argparse.Namespace, command: list[str] | None
) -> Iterator[CaseResult | ReadFailure]:
    """One deployment; with --each one for every file that starts something."""
    overrides = parse_overrides(chosen)
    for files in [[file] for file in chosen.files] if chosen.each else [chosen.files]:
        try:
            case = build_case(load_deployment(files, command), overrides)
            yield CaseResult(case, judge(case))
        except (CannotStart, OSError) as error:
            if is_of_output(error):
                raise
            if chosen.each and starts_nothing(error):
                print_overlooked(files[0], error)
                continue
            print_wrapped(f"{PROGRAM}: {shown(cause(error))}")
            yield ReadFailure(files[0] if len(files) == 1 else "", shorten(cause(error)))


def starts_nothing(error: Exception) -> TypeGuard[NothingStarted]:
    from vivace.deploy.from_script.script import NothingStarted

    return isinstance(error, NothingStarted)


def print_overlooked(file: str, error: NothingStarted) -> None:
    """Of a file without servers what may hide one, if anything does."""
    for line in error.overlooked or (f"{file}: it starts no server, nothing to check",):
        print_wrapped(shown(line))


def worst(checked: Sequence[CaseResult | ReadFailure]) -> int:
    if any(isinstance(each, ReadFailure) for each in checked):
        return CANNOT_START
    errors = any(isinstance(each, CaseResult) and each.result.errors for each in checked)
    return FOUND_ERRORS if errors else 0


def refuse_combinations(chosen: argparse.Namespace) -> None:
    """Raises CannotStart where a flag would have no effect."""
    chosen.format = "json" if chosen.json else chosen.format
    for name, only in (("diff", ("text", "json")), ("suggest", ("text",)), ("write", ("text",)),
                       ("memory", ("text", "json"))):  # fmt: skip
        if getattr(chosen, name) and chosen.format not in only:
            raise CannotStart(f"--{name} is not written as {chosen.format}: {' or '.join(only)}")
    alone = next((name for name in ("diff", "suggest", "write", "html")
                  if chosen.each and getattr(chosen, name)), None)  # fmt: skip
    if alone is not None:
        raise CannotStart(f"--{alone} is for one deployment: leave out --each")


def refuse_releases(words: Sequence[str]) -> None:
    """Raises CannotStart for what is no release of SGLang."""
    for word in words:
        try:
            parse_release(word)
        except ValueError as error:
            order = "two releases come first: --diff OLD NEW FILE"
            raise CannotStart(f"--diff: {order if is_file(word) else error}") from None


def split_command(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """(our own words, the command after `--`)"""
    if "--" not in words:
        return list(words), None
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def refuse_stray(words: Sequence[str]) -> NoReturn:
    """Exit because of words that are none of ours; a server's are its command's."""
    from vivace.config.config import all_options

    served = {flag for option in all_options() for flag in option.flags}
    if taken := [word for word in words if word.partition("=")[0] in served]:
        parser().error(
            f"{taken[0]} is a flag of a server; its command comes behind --: "
            f"{PROGRAM} -- vivace serve {taken[0]} .."
        )
    parser().refuse(words)


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog=PROGRAM,
        description="Checks a deployment file, launch scripts, or one command (after --).",
        epilog=EPILOG,
        formatter_class=as_wide_as_the_terminal,
    )
    made.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a deployment (YAML), or scripts, compose files, manifests, Dockerfiles and systemd "
        "units; - is standard input",
    )
    made.add_argument("--target", help="engine to judge for: vivace, sglang, sglang==0.5.10")
    made.add_argument("--memory", action="store_true", help="the memory of a device of each role")
    made.add_argument("--notes", action="store_true", help="show notes and remarks on documents")
    made.add_argument("--format", choices=FORMATS, default="text", help="github: annotations")
    made.add_argument("--json", action="store_true", help="the same as --format json")
    made.add_argument("--each", action="store_true", help="every file is a deployment of its own")
    made.add_argument("--html", metavar="FILE", help="write a page with everything")
    made.add_argument("--suggest", action="store_true", help="values for what is left open")
    made.add_argument("--write", action="store_true", help="--suggest, and put them into the file")
    made.add_argument(
        "--diff",
        nargs=2,
        metavar=("OLD", "NEW"),
        help="what changes from one release of SGLang to another, as 0.5.10 0.5.23",
    )
    made.add_argument("--explain", metavar="RULE", help="what a rule is about")
    made.add_argument("--rules", action="store_true", help="list all rules")
    about = made.add_argument_group("facts that the files do not state")
    about.add_argument("--hardware", metavar="NAME", help="`vivace deploy hardware` lists names")
    about.add_argument("--cards", type=int, metavar="N", help="of all nodes together")
    about.add_argument(
        "--model", metavar="MODEL", help="a known name, or a folder with config.json"
    )
    about.add_argument("--quantization", metavar="FORM", help="of the weights: bf16, w8a8, w4a8")
    about.add_argument("--input", type=int, metavar="TOKENS", help="of a prompt")
    about.add_argument("--output", type=int, metavar="TOKENS", help="of an answer")
    about.add_argument("--concurrency", type=int, metavar="N", help="requests at a time")
    about.add_argument(
        "--prefix-share", type=float, metavar="X", help="part of a prompt that others share"
    )
    return made


def as_wide_as_the_terminal(prog: str) -> argparse.HelpFormatter:
    """Asks the terminal for its width: argparse would load shutil for it."""
    try:
        columns = os.get_terminal_size().columns or 80  # some say 0
    except OSError:
        columns = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=columns - 2)


def parse_overrides(chosen: argparse.Namespace) -> Overrides:
    values = {name: getattr(chosen, name) for name in Overrides.__struct_fields__}
    wrong = [name for name, value in values.items() if isinstance(value, int) and value < 1]
    if wrong:
        raise CannotStart(f"--{wrong[0]} must be at least 1, got {values[wrong[0]]}")
    if chosen.prefix_share is not None and not 0 <= chosen.prefix_share <= 1:
        raise CannotStart(f"--prefix-share must be between 0 and 1, got {chosen.prefix_share}")
    return Overrides(**values)


def load_deployment(files: Sequence[str], command: list[str] | None) -> LoadedDeployment:
    if command is not None:
        if files:
            raise CannotStart("give files or a command after --, not both")
        if command:
            return open_command(command)
    if not files:
        raise CannotStart("expected a deployment file, scripts, or a command after --")
    return open_files(files)


def print_rules(name: str | None) -> int:
    if name is None:
        print(rule_list(RULES))
        return 0
    rule = find_rule(name)
    if rule is None:
        from vivace.errors import nearest

        near = nearest(name, [each.name for each in RULES]) or "; --rules lists them"
        raise CannotStart(f"unknown rule {name!r}{near}")
    print(rule_text(rule))
    return 0


def rule_list(rules: Sequence[Rule]) -> str:
    width = max(len(rule.name) for rule in rules)
    lines = [
        f"{rule.severity:8} {rule.name:{width}}  {rule.title}" + (rule.scope and f" ({rule.scope})")
        for rule in rules
    ]
    return "\n".join(lines)


def rule_text(rule: Rule) -> str:
    lines = [f"{rule.name} ({rule.severity}): {rule.title}.", ""]
    lines += [rule.explanation]
    if rule.needs:
        lines.append(f"It needs to know: {', '.join(rule.needs)}.")
    if rule.assumptions:
        lines.append("Its errors are warnings until these are settled:")
        found = [(name, ASSUMPTIONS[name]) for name in rule.assumptions]
        lines += [f"  {name}: {each.meaning} ({each.remedy})" for name, each in found]
    if rule.scope:
        lines.append(f"Holds for: {rule.scope}.")
    return "\n".join([*lines, f"Source: {rule.source}."])


def print_report(checked: Sequence[CaseResult | ReadFailure], chosen: argparse.Namespace) -> None:
    judged = [each for each in checked if isinstance(each, CaseResult)]
    if chosen.html is not None and judged:
        from vivace.deploy.report.page import page

        write_file(chosen.html, page(judged[0].case, judged[0].result))
    if chosen.format == "json":
        from vivace.deploy.report.machine import json_report

        print(json_report(checked, memory=chosen.memory))
    elif chosen.format == "github":
        from vivace.deploy.report.github import github_lines

        print("\n".join(github_lines(checked, checkout(), notes=chosen.notes)))
    elif chosen.format == "sarif":
        from vivace.deploy.report.sarif import sarif_log

        print(sarif_log(checked, checkout()))
    else:
        print_text(judged, chosen)


def print_text(judged: Sequence[CaseResult], chosen: argparse.Namespace) -> None:
    from vivace.deploy.report.terminal import show

    for index, each in enumerate(judged):
        if index:
            print()
        show(each.case, each.result, notes=chosen.notes, memory=chosen.memory)
    if chosen.html is not None and judged:
        print(f"written: {chosen.html}")


def checkout() -> str:
    """The folder that paths in CI are relative to; empty: the current one."""
    return process_environment().get("GITHUB_WORKSPACE", "")


def print_difference(case: Case, chosen: argparse.Namespace) -> int:
    from vivace.deploy.difference import as_text, changes, not_known, open_flags

    old, new = map(parse_release, chosen.diff)
    found = changes(case, old, new)
    if chosen.format == "json":
        from vivace.deploy.report.machine import as_json, difference_report

        print(as_json(difference_report(found, old, new, open_flags(case, old, new))))
    else:
        print(as_text(found, old, new, not_known(case, old, new)))
    return FOUND_ERRORS if any(change.breaks for change in found) else 0


def print_suggestions(case: Case, chosen: argparse.Namespace) -> int:
    from vivace.deploy.report.terminal import show_suggestions
    from vivace.deploy.suggest import changes, find_unresolved, suggest

    found = suggest(case)
    unresolved = find_unresolved(case, found)
    show_suggestions(found, unresolved)
    if chosen.write and found:
        from vivace.deploy.schema.rewrite import rewrite

        if len(chosen.files) != 1 or not chosen.files[0].endswith(SPECS):
            raise CannotStart("--write changes a deployment file; import the script first")
        write_file(chosen.files[0], rewrite(chosen.files[0], changes(found)))
        print(f"written: {chosen.files[0]}")
    return FOUND_ERRORS if any(each.severity == "error" for each in unresolved) else 0
