"""Rules about what could not be read of a script, and what bash makes of its lines."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.locations import Location
from vivace.deploy.rules.rule import Issue, case_rule

READER = "the shell reader"
VLLM = "vLLM's argument tables of 0.9.0 and 0.33.0"


def report_remarks(case: Case, rule: str, remedy: str, dashes: str = "") -> Iterator[Issue]:
    """What reading the scripts found for a rule, where it stands."""
    for remark in case.remarks:
        if remark.rule == rule:
            flag = remark.flag and dashes + remark.flag
            place = Location(remark.file, remark.line, remark.end)
            at = case.sources.find("", flag, place)
            yield Issue(flag, remark.text, remedy, line=at.line, file=at.file)


@case_rule("no-roles", "warning", source="Vivace")
def no_roles(case: Case) -> Iterator[Issue]:
    """A deployment has roles.
    Rules are about servers: of a file that names none, hardly anything can be wrong."""
    if not case.deployment.roles and not case.deployment.benchmarks:
        text = "the file has no roles: there is nothing to check"
        yield Issue("roles", text, "add roles, or check the files that include this one")


@case_rule("not-understood", "warning", source=READER)
def not_understood(case: Case) -> Iterator[Issue]:
    """Every line of the script can be read.
    Scripts are read, never run. A line that the reader cannot follow may change what is started,
    so it is reported instead of guessed at."""
    return report_remarks(case, "not-understood", "check this line: the result lacks it")


@case_rule("left-out", "note", source=READER)
def left_out(case: Case) -> Iterator[Issue]:
    """Every command belongs to the deployment.
    Only what starts servers and known commands that prepare a node are carried over; others are
    never rendered."""
    return report_remarks(case, "left-out", "run it yourself where it is needed")


@case_rule("broken-line", "error", source="bash")
def broken_line(case: Case) -> Iterator[Issue]:
    """No line begins with a flag.
    Without a backslash at the end of the line before, bash runs the line as a command of its own,
    and the server starts without its flags."""
    return report_remarks(
        case, "broken-line", "end the line before with a backslash, nothing behind it"
    )


@case_rule("undefined-variable", "error", source="bash")
def undefined_variable(case: Case) -> Iterator[Issue]:
    """Variables are used by the name they were set by.
    An unset variable is an empty word, or none: then the flag takes the next word as its value."""
    return report_remarks(case, "undefined-variable", "correct the name")


@case_rule("variable-from-outside", "note", source="bash")
def variable_from_outside(case: Case) -> Iterator[Issue]:
    """Variables in flags are set by the script.
    Rules that need their values are not applied."""
    return report_remarks(case, "variable-from-outside", "set it in the script")


@case_rule("from-vllm", "note", source=VLLM)
def from_vllm(case: Case) -> Iterator[Issue]:
    """Servers are SGLang's or Vivace's.
    `vllm serve` is read as the server of SGLang with flags of the same meaning; the rest of the
    report is about that server."""
    return report_remarks(case, "from-vllm", "")


@case_rule("not-translated", "warning", source=VLLM)
def not_translated(case: Case) -> Iterator[Issue]:
    """Every flag and variable of vLLM has a flag of the same meaning.
    What is only nearly the same is left out, so that nothing is guessed."""
    return report_remarks(case, "not-translated", "choose the flag of SGLang yourself")
