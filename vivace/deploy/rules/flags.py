"""Rules about what was written: what could not be read, and flags that exist and do something."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from vivace.config.errors import as_typed
from vivace.config.known_flags import whose_flag
from vivace.config.releases.tables import definitions, is_taken, latest, row_at, status, takers
from vivace.config.sglang import RETIRED, VALUES
from vivace.deploy.case import Case
from vivace.deploy.catalogue.ascend import ELSEWHERE, ascend_flags
from vivace.deploy.files import packaged_path
from vivace.deploy.from_script.flags import find_option, server_options
from vivace.deploy.locations import Location
from vivace.deploy.released import releases_with, replacement, why_refused
from vivace.deploy.rules.rule import Issue, Rule, Severity, case_rule, server_rule
from vivace.deploy.server_plan import ServerPlan, placeholder
from vivace.deploy.target import Target, versions_that_do
from vivace.errors import nearest
from vivace.files import read_file

LARGEST = 1 << 16
"""bytes of the file"""
ARGPARSE = "argparse, as SGLang uses it"
INVENTORY = "the source of SGLang 0.4.6 to 0.5.23"
ALMOST = 0.8  # of equal letters: a flag is taken for another
SAID = "as the server says it when it starts"
USUAL = frozenset({"--tp", "--dp", "--ep", "--pp"})
"""abbreviations that SGLang's own documents use, and each version takes"""
DEVICES = {"npu": ("npu",), "cuda": ("cuda",), "hip": ("cuda", "hip"), "cpu": ("cpu",)}
"""platform -> what --device calls it; torch for AMD says cuda"""
ACCELERATORS = ("cuda", "npu", "hip", "xpu", "hpu", "musa")
FEATURES = "Support Features on Ascend NPU"


class RemarkText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rule says of the remarks that have its name; `dashes`: in front of their flags."""

    name: str
    severity: Severity
    source: str
    title: str
    reason: str
    remedy: str
    dashes: str = ""


def remark_rule(row: RemarkText) -> Rule:
    """A rule that reports the remarks, where they stand."""

    def report(case: Case) -> Iterator[Issue]:
        for remark in case.remarks:
            if remark.rule == row.name:
                flag = remark.flag and row.dashes + remark.flag
                at = case.sources.find("", flag, Location(remark.file, remark.line, remark.end))
                yield Issue(flag, remark.text, row.remedy, remark.severity, place=at)

    report.__doc__ = row.title
    return case_rule(row.name, row.severity, source=row.source, reason=row.reason)(report)


@case_rule("no-roles", "warning", source="Vivace")
def no_roles(case: Case) -> Iterator[Issue]:
    """A deployment has roles.
    Rules are about servers: of a file that names none, hardly anything can be wrong."""
    if not case.deployment.roles and not case.deployment.benchmarks:
        text = "the file has no roles: there is nothing to check"
        yield Issue("roles", text, "add roles, or check the files that include this one")


REMARK_TEXTS = msgspec.json.decode(
    read_file(packaged_path("rules/remarks.json"), LARGEST), type=tuple[RemarkText, ...]
)
REMARK_RULES = tuple(map(remark_rule, REMARK_TEXTS))


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
    ours, vivace = server_options(), case.target.engine == "vivace"
    for flag in server.long_flags:
        if flag in ours and not (vivace or is_taken(flag)):
            text = f"{flag} is a flag of Vivace; SGLang has no such flag"
            yield Issue(flag, text, "remove it", certain=True)
        elif vivace and (text := "" if flag in ours else whose_flag(flag)):
            yield Issue(flag, text, SAID, certain=True)
        elif not (find_option(flag[2:]) if vivace else is_taken(flag)) and flag not in RETIRED:
            names = [*(ours if vivace else definitions()), *RETIRED]
            near = nearest(flag, names) or " (see `vivace flags`)"
            text = f"{case.target.text} has no flag {flag}{near}"
            alike = [name for name in names if abs(len(name) - len(flag)) <= 2]
            misspelled = bool(nearest(flag, alike, ALMOST))
            yield Issue(flag, text, "correct the name, or remove the flag", certain=misspelled)


@server_rule("flag-version", "warning", source=INVENTORY, engine="sglang")
def flag_version(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags exist in the target version.
    SGLang renames and removes flags between versions. With --target an exact version is checked;
    without it, a retired flag is a warning. One that the version calls deprecated still works, with
    a line in the log: a note."""
    version = case.target.version
    for flag in server.long_flags:
        retired = RETIRED.get(flag)
        if version:
            others, row = takers(flag), row_at(flag, version)
            if row is not None and row.state == "stops":
                text = f"SGLang {version} refuses {flag}"
                yield Issue(flag, text, replacement(flag, version), "error")
            elif status(flag, version)[0] == "unknown" and (others or retired):
                text = f"SGLang {version} does not accept {flag}{versions_that_do(others)}"
                yield Issue(flag, text, replacement(flag, version), "error")
            elif row is not None and row.state == "deprecated":
                remedy = f"use {row.today}" if row.today else "remove it"
                yield Issue(flag, f"SGLang {version} calls {flag} deprecated", remedy, "note")
        elif retired is not None and flag not in server_options():
            yield Issue(flag, f"{flag} is retired: {retired.why}", replacement(flag, version))


@server_rule("gone-from-latest", "note", source=INVENTORY)
def gone_from_latest(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags still exist in the newest version of SGLang.
    The same script will not start with the newest version that is known here."""
    if case.target != Target("sglang"):
        return
    taken = [flag for flag in server.long_flags if is_taken(flag)]
    gone = [flag for flag in taken if status(flag, latest())[0] in ("unknown", "ambiguous")]
    if gone:
        text = f"SGLang {latest()} no longer accepts {', '.join(gone)}"
        yield Issue(gone[0], text, f"`vivace check --target sglang=={latest()}` shows replacements")


@server_rule("abbreviated-flag", "warning", source=ARGPARSE)
def abbreviated_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags are not abbreviated.
    argparse accepts the beginning of a flag as long as only one flag begins like that; the next
    version may have two, as 0.5.23 has --cuda-graph-bs-decode and --cuda-graph-bs-prefill."""
    if case.target.engine == "vivace":
        return
    version = case.target.version
    for flag in server.long_flags:
        kind, full = status(flag, version or latest())
        if kind == "known" or flag in USUAL or (not version and flag in definitions()):
            continue
        if kind == "ambiguous" and version:
            options = ", ".join(full)
            text = f'SGLang {version} stops with "ambiguous option: {flag} could match {options}"'
            yield Issue(flag, text, f"write one of {options}", "error")
        elif kind == "short":
            text = f"{flag} abbreviates {full[0]}: it fails once another flag begins like it"
            yield Issue(flag, text, f"write {full[0]}")
        elif not version and is_taken(flag):
            text = f"{flag} is an abbreviation that SGLang {latest()} does not accept"
            yield Issue(flag, text, "write the whole flag")


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
            from vivace.deploy.own_checks import why_refused_alone

            reason = "" if option is None else why_refused_alone(option, value)
        else:
            reason = why_refused("--" + flag, value, case.target.version)
        severity = None
        if not reason and case.target == Target("sglang"):
            reason, severity = why_refused("--" + flag, value, latest()), "warning"
        if reason:
            text = as_typed(reason, server.names)
            yield Issue("--" + flag, text, "use a value that the flag accepts", severity)


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


@server_rule("ascend-flag", "warning", source=FEATURES, platforms=("npu",), engine="sglang")
def ascend_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags work on Ascend.
    SGLang's feature table marks flags that are for GPUs only, planned or incomplete on Ascend."""
    for flag, value in server.role.flags.items():
        option = find_option(flag)
        spellings = [*(each[2:] for each in (option.flags if option else ())), flag]
        state = ascend_flags().state(spellings)
        if state and value is not False:
            yield Issue("--" + flag, f"--{flag} {state}", "remove it")
        elif ascend_flags().is_experimental(spellings):
            yield Issue("--" + flag, f"--{flag} is experimental on Ascend", severity="note")


@server_rule("ascend-value", "note", source=FEATURES, platforms=("npu",), engine="sglang")
def ascend_value(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Values are documented for Ascend.
    The feature table lists the values that were tested on Ascend."""
    for name, (flag, value) in server.given.items():
        documented = ascend_flags().values.get(name)
        if documented is None or str(value) in documented or placeholder(value):
            continue
        option = find_option(flag)
        if option is not None and option.choices and str(value) not in option.choices:
            continue
        values = ", ".join(documented)
        text = f"--{flag} {value} is not documented for Ascend (documented: {values})"
        yield Issue("--" + flag, text, "test it before you rely on it")


@server_rule("backend-platform", "error", source=INVENTORY)
def backend_platform(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--device and backends are those of the hardware.
    Each device has a torch of its own: the server stops where it asks for another one, or for a
    backend that imports torch_npu, which only Ascend has."""
    for name, (flag, value) in server.given.items() if case.platform not in ("", "npu") else ():
        if isinstance(value, str) and "ascend" in value and name.endswith("_backend"):
            text = f"--{flag} {value} needs an Ascend device, and this is {case.platform}"
            remedy = f"remove --{flag}, or choose another ({ELSEWHERE.get(name, 'see --help')})"
            yield Issue("--" + flag, text, remedy)
    device, known = str(server.value("device")), DEVICES.get(case.platform, ())
    if known and device in ACCELERATORS and device not in known:
        text = f"--device {device}, but the hardware is {case.platform}"
        yield Issue("device", text, f"--device {known[0]}, or other hardware")


@server_rule("vivace-flag", "error", source="Vivace's own table of flags", engine="vivace")
def vivace_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Vivace supports every flag and value on this device.
    Every flag has a state on every device: works, no effect, not supported yet. `vivace flags`
    prints them."""
    from vivace.config.config import all_options
    from vivace.config.option import (
        ABSENT,
        DEFAULT_PLATFORM,
        PLATFORMS,
        WORKS,
        Support,
        not_available,
    )

    _, asked = server.given.get("device", ("", None))  # a node with accelerators has a CPU, too
    platform = (asked if asked in PLATFORMS else case.platform) or DEFAULT_PLATFORM
    other = not_available(f"{platform} is not supported yet", "use --device cpu")
    absent = ABSENT.get(platform) if platform in PLATFORMS else other
    if absent is not None:
        yield Issue("--device", f"no flag of this role works on {platform}: {absent.text()}")
        return
    options = {option.name: option for option in all_options()}
    for flag, value in server.role.flags.items():
        known = find_option(flag)
        if known is None or value is None or value is False:
            continue
        option = options[known.name]
        if value == option.default or value in option.trivial:
            continue
        state = option.state(platform, value)
        if state != WORKS:
            severity = "error" if state.kind is Support.NOT_AVAILABLE else "note"
            yield Issue("--" + flag, f"--{flag} on {platform}: {state.text()}", severity=severity)


@server_rule("vivace-start", "error", source="Vivace's own checks", engine="vivace")
def vivace_start(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Vivace takes the flags together, and the model.
    Its own checks stop the start, as for a --host that others reach without a key. Where only
    scripts were read, a key may come from outside: that is a warning; so may that of nodes always
    (`render --to kubernetes` and `compose` add one). A model is looked at where
    its files lie on this machine: the embedded one, a folder, a GGUF file; a draft that is named by
    its path has to lie there, too. What it takes and has
    something to say of, as of a flag without effect beside others, is a note."""
    from vivace.deploy.own_checks import said_together

    named = case.described is not None and "model_path" not in server.given
    for text, refused in said_together(server, named=named):
        outside = "--cluster-key-file" in text or ("--api-key" in text and case.launches)
        severity = ("warning" if outside else None) if refused else "note"
        yield Issue(flag_in(text, server), as_typed(text, server.names), SAID, severity)


@server_rule(
    "vivace-layout", "error", source="Vivace's own checks", engine="vivace", needs=("model",)
)
def vivace_layout(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Ranks can share the model.
    Vivace's own checks of parallelism, with what the catalogue or a config.json says of the model:
    heads, the inside of MLPs and experts, experts and their copies, layers of stages. Where it
    depends on how weights are stored, and nothing says that they are as published, nothing is
    found."""
    from vivace.deploy.own_checks import why_layout_refused

    if case.described and (reason := why_layout_refused(server, case, case.described)):
        yield Issue(flag_in(reason, server), as_typed(reason, server.names), SAID)


def flag_in(reason: str, server: ServerPlan) -> str:
    """What a refusal begins with: the name of an option, a variable, or the path of a model."""
    first = re.split(r"[ :=,]", reason, maxsplit=1)[0]
    option = find_option(first[2:]) if first.startswith("--") else None
    _, draft = server.given.get("speculative_draft_model_path", ("", ""))
    model = "speculative_draft_model_path" if draft and str(draft) in reason else "model_path"
    return option.name if option else first if first.isupper() else model
