"""Rules about the words themselves: flags and values that exist, in the version they are for."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.config.errors import ConfigError
from vivace.config.sglang import RETIRED, VALUES
from vivace.config.values import checked, nearest
from vivace.deploy.importing.flags import option_named, server_options
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import Server
from vivace.deploy.rules.target import (
    LATEST,
    VALUE_VERSIONS,
    VERSIONS,
    Target,
    status,
    versions_with,
)

ARGPARSE = "argparse, as SGLang uses it"
INVENTORY = "SGLang's server_args.py, 0.4.6 to 0.5.23"


def flags_of(case: Case) -> Iterator[tuple[Server, str]]:
    """(server, flag with its dashes) of everything typed for a server, without single dashes."""
    for server in case.servers:
        for flag in server.role.flags:
            if not flag.startswith("-"):
                yield server, "--" + flag


def judged(target: Target) -> tuple[str, ...]:
    """The versions a flag may belong to."""
    return (target.version,) if target.version else VERSIONS


def single_dash(case: Case) -> Iterator[Found]:
    holders = [(server.name, server.role.flags) for server in case.all]
    holders += [("benchmark", each.benchmark.flags) for each in case.benchmarks]
    for name, flags in holders:
        for flag in flags:
            if flag.startswith("-") and len(flag) > 2:
                yield Found(
                    role=name,
                    flag=flag,
                    text=f"{flag} has one dash: argparse reads -{flag[1]} with a value",
                    remedy=f"write -{flag}",
                )


def unknown_flag(case: Case) -> Iterator[Found]:
    for server, flag in flags_of(case):
        if case.target.engine == "vivace":
            wrong = option_named(flag[2:]) is None and flag not in RETIRED
        else:
            kinds = {status(flag, version)[0] for version in judged(case.target)}
            wrong = not kinds & {"known", "short", "ambiguous"}
        if wrong and not ever(flag, case.target):
            near = nearest(flag, [*server_options(), *RETIRED]) or "; vivace flags lists them all"
            yield Found(
                role=server.name,
                flag=flag,
                text=f"{flag} is no flag of {case.target.text}{near}",
                remedy="correct the name, or leave it out",
            )


def ever(flag: str, target: Target) -> bool:
    """Whether another rule has more to say: it exists in other versions."""
    elsewhere = (status(flag, version)[0] for version in VERSIONS if version != target.version)
    taken = any(kind in ("known", "short", "ambiguous") for kind in elsewhere)
    return flag in RETIRED or (bool(target.version) and taken)


def flag_of_other_version(case: Case) -> Iterator[Found]:
    if case.target.engine == "vivace":
        return
    for server, flag in flags_of(case):
        retired = RETIRED.get(flag)
        there = versions_with(flag)
        exact = case.target.version
        if exact:
            kind = status(flag, exact)[0]
            if kind == "undocumented":
                text = f"{flag} is not in the documentation of SGLang {exact}"
                yield Found(role=server.name, flag=flag, text=text, severity="warning")
            elif kind == "unknown" and (there or retired):
                among = f"; it is a flag of {', '.join(there)}" if there else ""
                yield Found(
                    role=server.name,
                    flag=flag,
                    text=f"SGLang {exact} does not take {flag}{among}",
                    remedy=today_text(flag),
                    severity="error",
                )
        elif retired is not None and flag not in server_options():
            yield Found(
                role=server.name,
                flag=flag,
                text=f"{flag} is retired: {retired.why}",
                remedy=today_text(flag),
            )


def today_text(flag: str) -> str:
    retired = RETIRED.get(flag)
    if retired is None:
        return "leave it out, or run a version that has it"
    return f"use {' '.join(retired.today)}" if retired.today else "leave it out"


def gone_from_latest(case: Case) -> Iterator[Found]:
    """One note for each role."""
    if case.target != Target("sglang"):
        return
    for server in case.servers:
        flags = ["--" + flag for flag in server.role.flags if not flag.startswith("-")]
        gone = [
            flag
            for flag in flags
            if status(flag, LATEST)[0] in ("unknown", "ambiguous") and versions_with(flag)
        ]
        if gone:
            yield Found(
                role=server.name,
                flag=gone[0],
                text=f"SGLang {LATEST} no longer takes {', '.join(gone)}",
                remedy=f"vivace check --target sglang=={LATEST} says what instead",
            )


def abbreviated(case: Case) -> Iterator[Found]:
    for server, flag in flags_of(case):
        found = [status(flag, version) for version in judged(case.target)]
        short = [names for kind, names in found if kind == "short"]
        if short and not any(kind == "known" for kind, _ in found):
            yield Found(
                role=server.name,
                flag=flag,
                text=f"{flag} is an abbreviation of {short[0][0]}: it stops working when another "
                "flag begins like it",
                remedy=f"write {short[0][0]}",
            )


def ambiguous(case: Case) -> Iterator[Found]:
    if case.target.engine == "vivace" or not case.target.version:
        return
    for server, flag in flags_of(case):
        kind, names = status(flag, case.target.version)
        if kind == "ambiguous":
            yield Found(
                role=server.name,
                flag=flag,
                text=f'SGLang {case.target.version} stops with "ambiguous option: {flag} could '
                f'match {", ".join(names)}"',
                remedy=f"write one of {', '.join(names)}",
            )


def flag_value(case: Case) -> Iterator[Found]:
    for server in case.servers:
        for flag, value in server.role.flags.items():
            option = option_named(flag)
            if option is None or value is None or placeholder(value):
                continue
            if (option.name, str(value)) in VALUES:
                continue
            try:
                checked(option, value)
            except ConfigError as error:
                yield Found(
                    role=server.name,
                    flag="--" + flag,
                    text=str(error),
                    remedy="give a value that the flag takes",
                )


def placeholder(value: object) -> bool:
    """`{node}`, and what only the machine that runs a script knows."""
    text = str(value)
    return "<" in text or ("{" in text and "}" in text)


def retired_value(case: Case) -> Iterator[Found]:
    for server in case.servers:
        for flag, value in server.role.flags.items():
            option = option_named(flag)
            known = VALUES.get((option.name, str(value))) if option else None
            if option is None or known is None:
                continue
            versions = VALUE_VERSIONS.get((option.name, str(value)))
            wrong = versions is not None and case.target.version not in ("", *versions)
            yield Found(
                role=server.name,
                flag="--" + flag,
                text=f"--{flag} {value}: {known[1]}",
                remedy=f"use {known[0]}",
                severity="error" if wrong else None,
            )


def given_twice(case: Case) -> Iterator[Found]:
    for each in case.remarks:
        if each.remark.rule == "flag-given-twice":
            flag = "--" + each.remark.flag
            yield Found(flag=flag, line=each.line, text=each.remark.text, remedy="keep one of them")


def stray_word(case: Case) -> Iterator[Found]:
    for each in case.remarks:
        if each.remark.rule == "stray-word":
            yield Found(
                flag="--" + each.remark.flag if each.remark.flag else "",
                line=each.line,
                text=each.remark.text + ": the program stops at it",
                remedy="quote it together with its flag's value, or take it away",
            )


def not_understood(case: Case) -> Iterator[Found]:
    for each in case.remarks:
        if each.remark.rule == "not-understood":
            yield Found(
                line=each.line,
                text=each.remark.text,
                remedy="what this line changes is not in the result: look at it yourself",
            )


RULES = (
    Rule(
        name="not-understood",
        severity="warning",
        title="Every line of the script is understood",
        explanation="Scripts are read, never run. A line that the reader cannot follow may change "
        "what is started, so it is named instead of guessed at.",
        source="the shell reader",
        check=not_understood,
    ),
    Rule(
        name="single-dash",
        severity="error",
        title="Long flags have two dashes",
        explanation="argparse reads -max-concurrency as the short flag -m with the value "
        "ax-concurrency and stops.",
        source=ARGPARSE,
        check=single_dash,
    ),
    Rule(
        name="unknown-flag",
        severity="error",
        title="Every flag exists",
        explanation="A flag that no version knows stops the start with `unrecognized arguments`.",
        source=INVENTORY,
        check=unknown_flag,
    ),
    Rule(
        name="flag-version",
        severity="warning",
        title="Flags exist in the version they are for",
        explanation="SGLang renames and removes flags between versions. With --target an exact "
        "version is judged; without it, a flag that has been retired is a warning.",
        source=INVENTORY,
        check=flag_of_other_version,
    ),
    Rule(
        name="gone-from-latest",
        severity="note",
        title=f"Flags still exist in {LATEST}",
        explanation="The same script will not start with the newest version that is known here.",
        source=INVENTORY,
        check=gone_from_latest,
    ),
    Rule(
        name="abbreviated-flag",
        severity="warning",
        title="Flags are written out",
        explanation="argparse takes the start of a flag for the flag as long as only one begins "
        "so; "
        "the next version may have two.",
        source=ARGPARSE,
        check=abbreviated,
    ),
    Rule(
        name="ambiguous-flag",
        severity="error",
        title="The start of a flag means one flag only",
        explanation="0.5.23 has --cuda-graph-bs-decode and --cuda-graph-bs-prefill, so "
        "--cuda-graph-bs means neither.",
        source=ARGPARSE,
        check=ambiguous,
    ),
    Rule(
        name="flag-value",
        severity="error",
        title="Flags have values they take",
        explanation="A number where a number is wanted, one of the choices where there are some.",
        source=INVENTORY,
        check=flag_value,
    ),
    Rule(
        name="retired-value",
        severity="warning",
        title="Values exist in the version they are for",
        explanation="--load-balance-method changed its values three times; decode_round_robin was "
        "one of 0.5.7 only (removed by sglang #16110).",
        source=INVENTORY,
        check=retired_value,
    ),
    Rule(
        name="flag-given-twice",
        severity="warning",
        title="Flags are given once",
        explanation="argparse keeps the last value without a word.",
        source=ARGPARSE,
        check=given_twice,
    ),
    Rule(
        name="stray-word",
        severity="error",
        title="Every word belongs to a flag",
        explanation="What is left over stops the start with `unrecognized arguments`.",
        source=ARGPARSE,
        check=stray_word,
    ),
)
