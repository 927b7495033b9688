"""Rules about the words themselves: flags and values exist in the version they are for."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.config.releases.tables import (
    definitions,
    is_taken,
    latest,
    row_at,
    span,
    status,
    takers,
)
from vivace.config.sglang import RETIRED, VALUES
from vivace.deploy.case import Case
from vivace.deploy.from_script.flags import find_option, server_options
from vivace.deploy.released import releases_with, replacement, why_refused, why_vivace_refuses
from vivace.deploy.rules.rule import Issue, case_rule, server_rule
from vivace.deploy.server_plan import ServerPlan, placeholder
from vivace.deploy.target import Target
from vivace.errors import nearest

ARGPARSE = "argparse, as SGLang uses it"
INVENTORY = "the source of SGLang 0.4.6 to 0.5.23"
ALMOST = 0.8  # of equal letters: a flag is taken for another
USUAL = frozenset({"--tp", "--dp", "--ep", "--pp"})
"""abbreviations that SGLang's own documents use, and each version takes"""


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


@server_rule("unknown-flag", "error", source=INVENTORY, assumes=("release", "program"))
def unknown_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Every flag exists.
    A flag that no version knows stops the start with `unrecognized arguments`. A misspelled one
    differs by a letter or two from one that is known; others may be of a release that is not."""
    ours = server_options()
    for flag in server.long_flags:
        if case.target.engine == "vivace":
            known, every = flag in ours, ours
        else:
            known, every = flag in ours or is_taken(flag), definitions()
        if not known and flag not in RETIRED:
            names = [*every, *RETIRED]
            near = nearest(flag, names) or " (see `vivace flags`)"
            text = f"{case.target.text} has no flag {flag}{near}"
            alike = [name for name in names if abs(len(name) - len(flag)) <= 2]
            misspelled = bool(nearest(flag, alike, ALMOST))
            yield Issue(flag, text, "correct the name, or remove the flag", certain=misspelled)


@server_rule("flag-version", "warning", source=INVENTORY, engine="sglang")
def flag_version(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags exist in the target version.
    SGLang renames and removes flags between versions. With --target an exact version is checked;
    without it, a retired flag is a warning."""
    version = case.target.version
    for flag in server.long_flags:
        retired = RETIRED.get(flag)
        if version:
            others, row = takers(flag), row_at(flag, version)
            if row is not None and row.state == "stops":
                text = f"SGLang {version} refuses {flag}"
                yield Issue(flag, text, replacement(flag, version), "error")
            elif status(flag, version)[0] == "unknown" and (others or retired):
                known = f" (versions that do: {span(others)})" if others else ""
                text = f"SGLang {version} does not accept {flag}{known}"
                yield Issue(flag, text, replacement(flag, version), "error")
        elif retired is not None and flag not in server_options():
            yield Issue(flag, f"{flag} is retired: {retired.why}", replacement(flag, version))


@server_rule("deprecated-flag", "note", source=INVENTORY, engine="sglang")
def deprecated_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The target version does not call the flag deprecated.
    It still works, with a line in the log, and a later version may refuse it."""
    for flag in server.long_flags if case.target.version else ():
        row = row_at(flag, case.target.version)
        if row is not None and row.state == "deprecated":
            text = f"SGLang {case.target.version} calls {flag} deprecated"
            yield Issue(flag, text, f"use {row.today}" if row.today else "remove it")


@server_rule("gone-from-latest", "note", source=INVENTORY)
def gone_from_latest(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags still exist in the newest version of SGLang.
    The same script will not start with the newest version that is known here."""
    if case.target != Target("sglang"):
        return
    gone = [
        flag
        for flag in server.long_flags
        if status(flag, latest())[0] in ("unknown", "ambiguous") and is_taken(flag)
    ]
    if gone:
        text = f"SGLang {latest()} no longer accepts {', '.join(gone)}"
        yield Issue(gone[0], text, f"`vivace check --target sglang=={latest()}` shows replacements")


@server_rule("abbreviated-flag", "warning", source=ARGPARSE)
def abbreviated_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags are not abbreviated.
    argparse accepts the beginning of a flag as long as only one flag begins like that; the next
    version may have two."""
    if case.target.engine == "vivace":
        return
    version = case.target.version
    for flag in server.long_flags:
        kind, full = status(flag, version or latest())
        if kind == "known" or flag in USUAL or (not version and flag in definitions()):
            continue
        if kind == "short":
            text = f"{flag} abbreviates {full[0]}: it fails once another flag begins like it"
            yield Issue(flag, text, f"write {full[0]}")
        elif not version and is_taken(flag):
            text = f"{flag} is an abbreviation that SGLang {latest()} does not accept"
            yield Issue(flag, text, "write the whole flag")


@server_rule("ambiguous-flag", "error", source=ARGPARSE, engine="sglang")
def ambiguous_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """An abbreviated flag matches only one flag.
    0.5.23 has --cuda-graph-bs-decode and --cuda-graph-bs-prefill, so --cuda-graph-bs is neither."""
    version = case.target.version
    for flag in server.long_flags if version else ():
        kind, names = status(flag, version)
        if kind == "ambiguous":
            options = ", ".join(names)
            text = f'SGLang {version} stops with "ambiguous option: {flag} could match {options}"'
            yield Issue(flag, text, f"write one of {options}")


@server_rule("flag-value", "error", source=INVENTORY)
def flag_value(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags have values of their type and among their choices.
    argparse converts and compares every value before anything is loaded, and stops with a
    usage line. For SGLang the values are those of the target version; without one, of any: what
    the newest refuses and others take is a warning."""
    for flag, value in server.role.flags.items():
        option = find_option(flag)
        if value is None or placeholder(value):
            continue
        if option is not None and (option.name, str(value)) in VALUES:
            continue
        if case.target.engine == "vivace":
            reason = "" if option is None else why_vivace_refuses(option, value)
        else:
            reason = why_refused("--" + flag, value, case.target.version)
        severity = None
        if not reason and case.target == Target("sglang"):
            reason, severity = why_refused("--" + flag, value, latest()), "warning"
        if reason:
            yield Issue("--" + flag, reason, "use a value that the flag accepts", severity)


@server_rule("retired-value", "warning", source=INVENTORY)
def retired_value(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Values exist in the target version.
    --load-balance-method changed its values three times; only 0.5.7 has decode_round_robin (removed
    by sglang #16110)."""
    for flag, value in server.role.flags.items():
        option = find_option(flag)
        known = VALUES.get((option.name, str(value))) if option else None
        if option is None or known is None:
            continue
        versions, version = releases_with("--" + flag, str(value)), case.target.version
        wrong = bool(version) and version not in versions
        severity = "error" if wrong else "note" if version else None
        yield Issue("--" + flag, f"--{flag} {value}: {known[1]}", f"use {known[0]}", severity)
