"""Which values environment variables take, and which known name a misspelled one resembles."""

from __future__ import annotations

from vivace.config.releases.tables import library_variables, variable_rows
from vivace.deploy.catalogue.flags import tables
from vivace.errors import nearest

INTEGERS = ("HCCL_BUFFSIZE", "STREAMS_PER_DEVICE", "TASK_QUEUE_ENABLE")
"""of libraries; those of SGLang are in its releases' tables"""
SWITCH = ("1", "0", "true", "false", "yes", "no", "y", "n")
"""what SGLang's EnvBool takes, in any case of letters"""
CHOICES = {
    "HCCL_OP_EXPANSION_MODE": ("AI_CPU", "AIV", "HOST", "HOST_TS", "CCU_MS", "CCU_SCHED"),
    "HCCL_DETERMINISTIC": ("true", "false", "strict"),
    "TASK_QUEUE_ENABLE": ("0", "1", "2"),
}
"""by the documents of CANN and torch_npu"""


def is_whole(name: str) -> bool:
    """Whether every reader of a variable makes an integer of it."""
    known = tables().variables.get(name)
    if name in INTEGERS or (known is not None and known.kind == "whole number"):
        return True
    return {row.kind for row in variable_rows().get(name, ())} == {"whole number"}


def known_values(name: str) -> tuple[str, ...]:
    """All values that its readers know, a switch's in small letters; empty where any is one."""
    kinds = {row.kind for row in variable_rows().get(name, ())}
    return CHOICES.get(name, SWITCH if kinds == {"switch"} else ())


def nearest_variable(name: str, cutoff: float) -> str:
    """Empty for a known one, also with a number of its own behind it: HOST_IP_2."""
    others = {*variable_rows(), *library_variables(), *tables().variables}
    if name in others or name.rstrip("0123456789_") in others:
        return ""
    most = len(name) * (2 - cutoff) / cutoff  # letters of a name that can be as much alike
    return nearest(name, (each for each in sorted(others) if len(each) <= most), cutoff)
