"""What is known at one point of a script, on one of the machines that run it."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from vivace.deploy.shell.text import Text, Unknown, display

Value = Text | list[Text]
"""of a variable; a list is an array"""


NAMES = re.compile(r"hostname|ip |ifconfig|HOSTNAME|POD_IP|HOST_IP")
"""what asks a machine who it is"""


class Assumption(msgspec.Struct, frozen=True):
    """A comparison that decides where something runs: `hostname -I` gives `10.0.0.1`."""

    origin: str
    value: str


class Placement(msgspec.Struct, frozen=True):
    """Where a wrapper runs its command."""

    host: str = ""
    """that `ssh` names"""
    contained: bool = False
    """in a container with a network of its own"""
    tasks: int = 0
    """how many processes `srun` or `mpirun` starts; 0: one, or unknown"""
    published: tuple[tuple[int, int], ...] = ()
    """ports of the machine that lead to the container: the first, and how many from it on"""


class Launch(msgspec.Struct, frozen=True):
    """A command the script runs. What is unknown stands in angle brackets."""

    words: tuple[str, ...]
    environment: dict[str, str]
    """exported by the script or set for this command"""
    line: int
    background: bool = False
    assumptions: tuple[Assumption, ...] = ()
    behind: int = 0
    """line of a server in the foreground that must end before this starts"""
    unset: tuple[str, ...] = ()
    """variables removed with `unset`"""
    file: str = ""
    """the sourced file that holds it; empty: the script itself"""
    end: int = 0
    """the command's last line"""
    round: int = 0
    """how often the same path through the script came by this line before: rounds of a loop"""
    paths: tuple[int, ...] = ()
    """the paths through the script that come by it: what shares none never runs together"""
    placement: Placement = Placement()
    stops: tuple[int, int] = (0, 0)
    """how often the script ended servers before, where it runs and on this machine"""
    again: tuple[str, ...] = ()
    """its words in the next round of a loop without a known end, which starts it beside this"""

    @property
    def machine(self) -> str:
        """The name or address of the machine that its branch is for; empty if it asks for none."""
        asked = (each.value for each in self.assumptions if NAMES.search(each.origin))
        return next(asked, "")


class Note(msgspec.Struct, frozen=True):
    """A line that was not understood, and what was made of it."""

    line: int
    text: str
    file: str = ""


def no_text(name: str) -> str | None:
    """Of a file, where none is opened."""
    return None


class ScriptState(msgspec.Struct):
    """One path through the script. It splits where a condition is unknown."""

    variables: dict[str, Value] = {}
    exported: set[str] = set()
    unset: set[str] = set()
    assumptions: tuple[Assumption, ...] = ()
    differs: frozenset[tuple[str, str]] = frozenset()
    """(origin, value) assumed to be different"""
    launches: list[Launch] = []
    ended: bool = False
    """after `exit`"""
    serving: int = 0
    """line of the last server in the foreground"""
    leaves: str = ""
    """a pending `break`, `continue` or `return`"""
    placement: Placement = Placement()
    stops: dict[str, int] = {}
    """how often servers were ended, by the host that `ssh` names"""
    given: str | None = None
    """what is still to be read on standard input, if that is known"""
    opened: Callable[[str], str | None] = no_text
    """the text of a file that the script wrote, or that lies beside it"""

    def copy(self) -> ScriptState:
        return msgspec.structs.replace(
            self,
            variables={
                name: list(value) if isinstance(value, list) else value
                for name, value in self.variables.items()
            },
            exported=set(self.exported),
            unset=set(self.unset),
            launches=list(self.launches),
        )

    @property
    def runs(self) -> bool:
        return not self.ended and not self.leaves

    def assign(self, name: str, value: Value) -> None:
        self.variables[name] = value
        self.unset.discard(name)

    def forget(self, name: str) -> None:
        self.variables.pop(name, None)
        self.exported.discard(name)
        self.unset.add(name)

    def stopped(self, host: str) -> int:
        return self.stops.get(host, 0)

    def scalar(self, name: str) -> Text | None:
        """$name; of an array its first element. None: never set here."""
        value = self.variables.get(name)
        if isinstance(value, list):
            return value[0] if value else ()
        return value

    def elements(self, name: str) -> list[Text] | None:
        value = self.variables.get(name)
        if value is None or isinstance(value, list):
            return value
        return [value]

    def exported_only(self) -> ScriptState:
        """What another shell sees that this one starts."""
        inner = self.copy()
        inner.variables = {
            name: value for name, value in inner.variables.items() if name in inner.exported
        }
        return inner

    def environment(self) -> dict[str, str]:
        return {
            name: display(value)
            for name in sorted(self.exported)
            if (value := self.scalar(name)) is not None
        }

    def assumed(self, unknown: Unknown, value: str) -> bool | None:
        """Whether it is assumed to be `value`; None: not decided yet."""
        for assumption in self.assumptions:
            if assumption.origin == unknown.origin:
                return assumption.value == value
        return False if (unknown.origin, value) in self.differs else None


States = list[ScriptState]


def stretch(states: States, since: int, end: int) -> None:
    """Of a text in quotes whose lines are joined: what it starts stands on all of them."""
    for each in states:
        own = [msgspec.structs.replace(launch, end=end) for launch in each.launches[since:]]
        each.launches[since:] = own


def merge_results(state: ScriptState, ended: States) -> States:
    """What an inner shell launched and its assumptions count; its variables do not."""
    found: States = []
    for each in ended:
        outer = state.copy()
        outer.launches, outer.serving, outer.stops = each.launches, each.serving, each.stops
        outer.assumptions, outer.differs = each.assumptions, each.differs
        found.append(outer)
    return found
