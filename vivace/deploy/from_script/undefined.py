"""What a command needs and nothing sets: variables, the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vivace.config.releases.tables import library_variables
from vivace.deploy.from_script.flags import UNKNOWN, Remark
from vivace.deploy.from_script.programs import Invocation
from vivace.deploy.from_script.roles import StartedServer, flag_value
from vivace.deploy.schema.deployment import Flags

REQUIRE_MODEL = ("sglang.launch_server", "sglang serve")
ARGUMENTS = re.compile(r"\$\{?[@*]")
"""of the script itself"""
VARIABLE = re.compile(r"<\$\{?([A-Za-z_]\w*)(?:\[[^]<>]*\])?\}?>")
SUPPLIED = re.compile(
    r"(SLURM|PMI|OMPI|KUBERNETES|LWS|POD|JOB|HOST|MASTER|NODE|RANK|WORLD|LOCAL|HOME|USER|PWD|VC|"
    r"BASH|RANDOM|SECONDS|UID|PPID|HF|MODELSCOPE|TMPDIR|CUDA|ASCEND|VOLC|MLP|PET)(_|[A-Z]*$)"
)
"""how variables begin that schedulers and machines set: no table has them all. `library_variables`
has names, which misspelled ones are compared with"""


def undefined_variables(
    server: StartedServer, words: Sequence[str], known: Sequence[str]
) -> Iterator[Remark]:
    """In flags; and words that hold flags, as `$COMON` for `$COMMON`. `known`: what the script
    sets."""
    for flag, value in server.flags.items():
        for name in VARIABLE.findall(str(value)):
            schedulers = library_variables("schedulers")
            if name in known or name in schedulers:
                continue
            near, supplied = close(name, known), close(name, sorted(schedulers), 0.93)
            if near:
                text = f"${name} is never set, ${near} is: --{flag} gets nothing"
                yield Remark("undefined-variable", "--" + flag, text)
            elif supplied:
                text = f"${name} is never set; schedulers set ${supplied}: --{flag} gets nothing"
                yield Remark("undefined-variable", "--" + flag, text, severity="warning")
            elif not SUPPLIED.match(name):
                text = f"${name} is not set here: --{flag} is empty unless it is exported before"
                yield Remark("variable-from-outside", "--" + flag, text)
    in_flags = {*known, *VARIABLE.findall(str(server.flags))}
    for name in (match[1] for match in map(VARIABLE.fullmatch, words) if match):
        near = "" if name in in_flags else close(name, known)
        if near:
            text = f"${name} is never set, ${near} is: the flags in it are not given"
            yield Remark("undefined-variable", "$" + name, text)


def undefined_in_pod(name: str, known: Sequence[str]) -> Remark:
    """`$(NAME)` of a manifest that no env of the container defines."""
    near = close(name, known)
    left = "Kubernetes leaves it as it is"
    if near:
        text = f"$({name}) is never set, $({near}) is: {left}"
        return Remark("undefined-variable", name, text)
    text = f"$({name}) is not set by the container's env: {left}"
    return Remark("variable-from-outside", name, text, severity="warning")


def close(name: str, known: Sequence[str], cutoff: float = 0.85) -> str:
    """A variable whose name differs by a letter or two."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), "")


def missing_model(called: Invocation, flags: Flags, text: str) -> Iterator[Remark]:
    """SGLang has no default for it. Variables of the line may hold it; --config is a file of
    arguments, and what the script itself is given ("$@") is not known here."""
    named = flag_value(flags, "model-path") is not None or "config" in flags
    left = set(called.words) - set(map(str, flags.values()))
    is_open = any(map(UNKNOWN.fullmatch, left)) or ARGUMENTS.search(text)
    if called.program in REQUIRE_MODEL and not named and not is_open:
        said = f"{called.program} is started without a model"
        severity = "warning" if "$" in text else None
        yield Remark("no-model", "model-path", said, severity=severity)
