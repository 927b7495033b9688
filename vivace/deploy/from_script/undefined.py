"""Variables that a command uses and nothing sets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vivace.deploy.from_script.flags import Remark
from vivace.deploy.from_script.roles import StartedServer

VARIABLE = re.compile(r"<\$\{?([A-Za-z_]\w*)\}?>")
SUPPLIED = re.compile(
    r"(SLURM|PMI|OMPI|KUBERNETES|LWS|POD|JOB|HOST|MASTER|NODE|RANK|WORLD|LOCAL|HOME|USER|PWD|VC|"
    r"BASH|RANDOM|SECONDS|UID|PPID|HF|MODELSCOPE|TMPDIR|CUDA|ASCEND|VOLC|MLP|PET)(_|[A-Z]*$)"
)
"""variables that schedulers and machines set"""


def undefined_variables(
    server: StartedServer, words: Sequence[str], known: Sequence[str]
) -> Iterator[Remark]:
    """In flags; and words that hold flags, as `$COMON` for `$COMMON`. `known`: what the script
    sets."""
    for flag, value in server.flags.items():
        for name in VARIABLE.findall(str(value)):
            near = close(name, known)
            if name in known or (SUPPLIED.match(name) and not near):
                continue
            if near:
                text = f"${name} is never set, ${near} is: --{flag} gets nothing"
                yield Remark("undefined-variable", "--" + flag, text)
            else:
                text = f"${name} is not set here: --{flag} is empty unless it is exported before"
                yield Remark("variable-from-outside", "--" + flag, text)
    in_flags = {*known, *VARIABLE.findall(str(server.flags))}
    for name in (match[1] for match in map(VARIABLE.fullmatch, words) if match):
        near = "" if name in in_flags else close(name, known)
        if near:
            text = f"${name} is never set, ${near} is: the flags in it are not given"
            yield Remark("undefined-variable", "$" + name, text)


def close(name: str, known: Sequence[str]) -> str:
    """A variable whose name differs by a letter or two."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.85)), "")
