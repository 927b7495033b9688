"""What a probe says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from vivace.doctor.system import System

State = Literal["ok", "note", "warning", "error", "unknown"]
STATES: tuple[State, ...] = ("error", "warning", "note", "unknown", "ok")
"""worst first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`found` is how it is; `why` what that does; `mend` the command that mends it; `writes` what
    --fix may do itself: (file, content) pairs that are safe to change while things run."""

    name: str
    state: State
    found: str
    why: str = ""
    mend: str = ""
    writes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What the command line wants probed besides the machine itself."""

    ports: tuple[int, ...] = (30000,)
    interfaces: tuple[str, ...] = ()
    models: str = ""
    """folder of the weights"""


Probe = Callable[[System, ProbeOptions], Iterable[Diagnosis]]
