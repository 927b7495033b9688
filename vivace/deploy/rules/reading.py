"""Rules about what could not be read of a script, and what bash makes of its lines."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.locations import Location
from vivace.deploy.rules.rule import Issue, Rule, Severity, case_rule

READER = "the shell reader"
VLLM = "vLLM's argument tables of 0.9.0 and 0.33.0"
ARGPARSE = "argparse, as SGLang uses it"


def remark_rule(
    name: str, severity: Severity, source: str, docstring: str, remedy: str, dashes: str = ""
) -> Rule:
    """A rule that reports what reading the scripts found, where it stands."""

    def report(case: Case) -> Iterator[Issue]:
        for remark in case.remarks:
            if remark.rule == name:
                flag = remark.flag and dashes + remark.flag
                place = Location(remark.file, remark.line, remark.end)
                at = case.sources.find("", flag, place)
                severity = remark.severity
                yield Issue(flag, remark.text, remedy, severity, line=at.line, file=at.file)

    report.__doc__ = docstring
    return case_rule(name, severity, source=source)(report)


@case_rule("no-roles", "warning", source="Vivace")
def no_roles(case: Case) -> Iterator[Issue]:
    """A deployment has roles.
    Rules are about servers: of a file that names none, hardly anything can be wrong."""
    if not case.deployment.roles and not case.deployment.benchmarks:
        text = "the file has no roles: there is nothing to check"
        yield Issue("roles", text, "add roles, or check the files that include this one")


not_understood = remark_rule(
    "not-understood", "warning", READER,
    """Every line of the script can be read.
    Scripts are read, never run. A line that the reader cannot follow may change what is started,
    so it is reported instead of guessed at.""",
    "check this line: the result lacks it",
)  # fmt: skip
other_engine = remark_rule(
    "other-engine", "warning", READER,
    """Servers are those of SGLang, Vivace or vLLM.
    Others have flags of their own, which are not read.""",
    "check them by their own means",
)  # fmt: skip
left_out = remark_rule(
    "left-out", "note", READER,
    """Every command belongs to the deployment.
    Only what starts servers and known commands that prepare a node are carried over; others are
    never rendered.""",
    "run it yourself where it is needed",
)  # fmt: skip
undefined_variable = remark_rule(
    "undefined-variable", "error", "bash",
    """Variables are used by the name they were set by.
    An unset variable is an empty word, or none: then the flag takes the next word as its value.""",
    "correct the name",
)  # fmt: skip
variable_from_outside = remark_rule(
    "variable-from-outside", "note", "bash",
    """Variables in flags are set by the script.
    Rules that need their values are not applied.""",
    "set it in the script",
)  # fmt: skip
from_vllm = remark_rule(
    "from-vllm", "note", VLLM,
    """Servers are SGLang's or Vivace's.
    `vllm serve` is read as the server of SGLang with flags of the same meaning; the rest of the
    report is about that server.""",
    "",
)  # fmt: skip
unknown_release = remark_rule(
    "unknown-release", "warning", "PyPI",
    """Images are of a release of SGLang.
    The tag says for which release flags and variables are judged. Of one that is not known, flags
    are judged as for any release.""",
    "correct the tag, or state --target",
)  # fmt: skip
not_translated = remark_rule(
    "not-translated", "warning", VLLM,
    """Every flag and variable of vLLM has a flag of the same meaning.
    What is only nearly the same is left out, so that nothing is guessed.""",
    "choose the flag of SGLang yourself",
)  # fmt: skip
flag_given_twice = remark_rule(
    "flag-given-twice", "warning", ARGPARSE,
    """No flag is given twice.
    argparse keeps the last value without a word, so the first one has no effect. The same value
    twice is a note.""",
    "keep one of them", "--",
)  # fmt: skip
stray_word = remark_rule(
    "stray-word", "error", ARGPARSE,
    """Every word belongs to a flag.
    What is left over stops the start with `unrecognized arguments`.""",
    "quote it with its flag's value, or remove it", "--",
)  # fmt: skip
broken_line = remark_rule(
    "broken-line", "error", "bash",
    """No line begins with a flag.
    Without a backslash at the end of the line before, bash runs the line as a command of its own,
    and the server starts without its flags.""",
    "end the line before with a backslash, nothing behind it",
)  # fmt: skip
