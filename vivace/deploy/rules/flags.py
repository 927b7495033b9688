"""Rules about the words themselves: flags and values exist in the version they are for."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.config.errors import ConfigError
from vivace.config.sglang import RETIRED, VALUES
from vivace.config.values import parse_value
from vivace.deploy.case import Case
from vivace.deploy.from_script.flags import option_named, server_options
from vivace.deploy.rules.reading import remarked
from vivace.deploy.rules.rule import Issue, case_rule, server_rule
from vivace.deploy.server_plan import ServerPlan
from vivace.deploy.target import (
    LATEST,
    VALUE_VERSIONS,
    VERSIONS,
    Target,
    status,
    versions_with,
)
from vivace.errors import nearest

ARGPARSE = "argparse, as SGLang uses it"
INVENTORY = "SGLang's server_args.py, 0.4.6 to 0.5.23"


def long_flags(server: ServerPlan) -> list[str]:
    """Flags with their dashes, without those that were typed with a single one."""
    return ["--" + flag for flag in server.role.flags if not flag.startswith("-")]


def versions_of(target: Target) -> tuple[str, ...]:
    """The versions a flag may belong to."""
    return (target.version,) if target.version else VERSIONS


def placeholder(value: object) -> bool:
    """`{node}`, and what only the machine that runs a script knows."""
    text = str(value)
    return "<" in text or ("{" in text and "}" in text)


@case_rule("single-dash", "error", source=ARGPARSE)
def single_dash(case: Case) -> Iterator[Issue]:
    """Long flags have two dashes.
    argparse reads -max-concurrency as the short flag -m with the value ax-concurrency and stops."""
    holders = [(server.name, server.role.flags) for server in case.all]
    holders += [("benchmark", each.benchmark.flags) for each in case.benchmarks]
    for name, flags in holders:
        for flag in flags:
            if flag.startswith("-") and len(flag) > 2:
                text = f"{flag} has one dash: argparse reads it as -{flag[1]} with a value"
                yield Issue(flag, text, f"write -{flag}", role=name)


@server_rule("unknown-flag", "error", source=INVENTORY)
def unknown_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Every flag exists.
    A flag that no version knows stops the start with `unrecognized arguments`."""
    for flag in long_flags(server):
        if case.target.engine == "vivace":
            wrong = option_named(flag[2:]) is None and flag not in RETIRED
        else:
            kinds = {status(flag, version)[0] for version in versions_of(case.target)}
            wrong = not kinds & {"known", "short", "ambiguous"}
        if wrong and not in_other_version(flag, case.target):
            near = nearest(flag, [*server_options(), *RETIRED]) or " (see `vivace flags`)"
            text = f"{case.target.text} has no flag {flag}{near}"
            yield Issue(flag, text, "correct the name, or remove the flag")


def in_other_version(flag: str, target: Target) -> bool:
    """Whether the flag exists in other versions, about which another rule has more to say."""
    elsewhere = (status(flag, version)[0] for version in VERSIONS if version != target.version)
    taken = any(kind in ("known", "short", "ambiguous") for kind in elsewhere)
    return flag in RETIRED or (bool(target.version) and taken)


@server_rule("flag-version", "warning", source=INVENTORY, engine="sglang")
def flag_version(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags exist in the target version.
    SGLang renames and removes flags between versions. With --target an exact version is checked;
    without it, a retired flag is a warning."""
    version = case.target.version
    for flag in long_flags(server):
        retired = RETIRED.get(flag)
        if version:
            kind, others = status(flag, version)[0], versions_with(flag)
            if kind == "undocumented":
                yield Issue(flag, f"the documentation of SGLang {version} does not list {flag}")
            elif kind == "unknown" and (others or retired):
                known = f" (versions that do: {', '.join(others)})" if others else ""
                text = f"SGLang {version} does not accept {flag}{known}"
                yield Issue(flag, text, replacement(flag), "error")
        elif retired is not None and flag not in server_options():
            yield Issue(flag, f"{flag} is retired: {retired.why}", replacement(flag))


def replacement(flag: str) -> str:
    retired = RETIRED.get(flag)
    if retired is None:
        return "remove it, or run a version that has it"
    return f"use {' '.join(retired.today)}" if retired.today else "remove it"


@server_rule("gone-from-latest", "note", source=INVENTORY)
def gone_from_latest(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags still exist in the newest version of SGLang.
    The same script will not start with the newest version that is known here."""
    if case.target != Target("sglang"):
        return
    gone = [
        flag
        for flag in long_flags(server)
        if status(flag, LATEST)[0] in ("unknown", "ambiguous") and versions_with(flag)
    ]
    if gone:
        text = f"SGLang {LATEST} no longer accepts {', '.join(gone)}"
        yield Issue(gone[0], text, f"`vivace check --target sglang=={LATEST}` shows replacements")


@server_rule("abbreviated-flag", "warning", source=ARGPARSE)
def abbreviated_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags are not abbreviated.
    argparse accepts the beginning of a flag as long as only one flag begins like that; the next
    version may have two."""
    for flag in long_flags(server):
        found = [status(flag, version) for version in versions_of(case.target)]
        short = [names for kind, names in found if kind == "short"]
        if short and not any(kind == "known" for kind, _ in found):
            full = short[0][0]
            text = f"{flag} abbreviates {full}: it fails once another flag begins like it"
            yield Issue(flag, text, f"write {full}")


@server_rule("ambiguous-flag", "error", source=ARGPARSE, engine="sglang")
def ambiguous_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """An abbreviated flag matches only one flag.
    0.5.23 has --cuda-graph-bs-decode and --cuda-graph-bs-prefill, so --cuda-graph-bs is neither."""
    version = case.target.version
    for flag in long_flags(server) if version else ():
        kind, names = status(flag, version)
        if kind == "ambiguous":
            options = ", ".join(names)
            text = f'SGLang {version} stops with "ambiguous option: {flag} could match {options}"'
            yield Issue(flag, text, f"write one of {options}")


@server_rule("flag-value", "error", source=INVENTORY)
def flag_value(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags have values of their type and among their choices.
    argparse converts and compares every value before anything is loaded, and stops with a
    usage line."""
    for flag, value in server.role.flags.items():
        option = option_named(flag)
        if option is None or value is None or placeholder(value):
            continue
        if (option.name, str(value)) in VALUES:
            continue
        try:
            parse_value(option, value)
        except ConfigError as error:
            yield Issue("--" + flag, str(error), "use a value that the flag accepts")


@server_rule("retired-value", "warning", source=INVENTORY)
def retired_value(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Values exist in the target version.
    --load-balance-method changed its values three times; only 0.5.7 has decode_round_robin (removed
    by sglang #16110)."""
    for flag, value in server.role.flags.items():
        option = option_named(flag)
        known = VALUES.get((option.name, str(value))) if option else None
        if option is None or known is None:
            continue
        versions = VALUE_VERSIONS.get((option.name, str(value)))
        wrong = versions is not None and case.target.version not in ("", *versions)
        text = f"--{flag} {value}: {known[1]}"
        yield Issue("--" + flag, text, f"use {known[0]}", "error" if wrong else None)


@case_rule("flag-given-twice", "warning", source=ARGPARSE)
def given_twice(case: Case) -> Iterator[Issue]:
    """No flag is given twice.
    argparse keeps the last value without a word, so the first one has no effect."""
    return remarked(case, "flag-given-twice", "keep one of them", "--")


@case_rule("stray-word", "error", source=ARGPARSE)
def stray_word(case: Case) -> Iterator[Issue]:
    """Every word belongs to a flag.
    What is left over stops the start with `unrecognized arguments`."""
    return remarked(case, "stray-word", "quote it with its flag's value, or remove it", "--")
