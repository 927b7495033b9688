"""`option()`: a dataclass field that is a flag, a YAML key and a row of the documentation.

A frozen dataclass per subsystem declares its options; argparse, `--config`, the offline API's
keyword arguments and docs/flags.md are all generated from these declarations.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

PLATFORMS = ("cpu", "cuda", "npu")
"""that options have states for; the first is the default"""
DEFAULT_PLATFORM = PLATFORMS[0]
KEY = "option"


class Support(Enum):
    """What happens when an option is used on a platform."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    NOT_AVAILABLE = "not available"


@dataclass(frozen=True)
class FlagState:
    """`why` is a clause that follows the flag's name; `instead` an imperative."""

    kind: Support
    why: str = ""
    instead: str = ""

    def text(self) -> str:
        tail = "; ".join(part for part in (self.why, self.instead) if part)
        return f"{self.kind.value}: {tail}" if tail else self.kind.value


WORKS = FlagState(Support.WORKS)


def works(where: str) -> FlagState:
    return FlagState(Support.WORKS, where)


def no_effect(why: str) -> FlagState:
    return FlagState(Support.NO_EFFECT, why)


def not_available(why: str, instead: str = "leave it out") -> FlagState:
    return FlagState(Support.NOT_AVAILABLE, why, instead)


NO_CUDA = not_available("CUDA is not supported yet", "use --device cpu")
NO_NPU = not_available("Ascend is not supported yet", "use --device cpu")
ABSENT = {"cuda": NO_CUDA, "npu": NO_NPU}
"""platforms on which no option works"""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One declared option. `shape`: bool, int, float, str, json or list of the first four."""

    name: str
    flags: tuple[str, ...]
    default: Any
    shape: str
    choices: tuple[str, ...]
    states: Mapping[str, FlagState]
    help: str
    trivial: tuple[Any, ...]
    """values that ask for nothing, so they pass where the option is not available"""
    values: Mapping[str, FlagState]
    """states of single values on platforms where the option itself works"""
    secret: bool
    slice_name: str = ""
    plugins: str = ""
    """the group of entry points whose names are choices, too"""

    @property
    def flag(self) -> str:
        return self.flags[0]

    @property
    def offered(self) -> tuple[str, ...]:
        """Choices that do not stop the start: those to name to somebody who looks for one."""
        return tuple(choice for choice in self.choices if not self.is_refused(choice))

    def is_refused(self, value: str) -> bool:
        return value in self.values and self.values[value].kind is Support.NOT_AVAILABLE

    def state(self, platform: str, value: Any) -> FlagState:
        """The state of this option set to `value` on `platform`."""
        state = self.states[platform]
        if state.kind is Support.WORKS and isinstance(value, str) and value in self.values:
            return self.values[value]
        return state


def option(
    default: Any = None,
    help: str = "",
    *,
    cpu: FlagState = WORKS,
    cuda: FlagState = NO_CUDA,
    npu: FlagState = NO_NPU,
    flag: str | None = None,
    aliases: Sequence[str] = (),
    choices: Sequence[str] = (),
    values: Mapping[str, FlagState] | None = None,
    trivial: Sequence[Any] = (),
    json: bool = False,
    secret: bool = False,
    plugins: str = "",
) -> Any:
    """A dataclass field that is an option.

    `cpu`, `cuda`, `npu`: its state on each platform, `values`: states of single values;
    `trivial`: values besides the default that ask for nothing; `flag` (default: the field's name)
    and `aliases` are spelled without dashes.
    """
    declared = {
        "help": help,
        "states": {"cpu": cpu, "cuda": cuda, "npu": npu},
        "flag": flag,
        "aliases": tuple(aliases),
        "choices": tuple(choices),
        "values": dict(values or {}),
        "trivial": tuple(trivial),
        "json": json,
        "secret": secret,
        "plugins": plugins,
    }
    return field(default=default, metadata={KEY: declared})


def declared_options(cls: type[Any], slice_name: str = "") -> Iterator[Option]:
    """The options a dataclass declares, in order."""
    hints = typing.get_type_hints(cls)
    for declared in dataclasses.fields(cls):
        if KEY in declared.metadata:
            yield build(declared, hints[declared.name], slice_name)


def build(declared: dataclasses.Field[Any], hint: Any, slice_name: str) -> Option:
    known = declared.metadata[KEY]
    first = "--" + (known["flag"] or declared.name.replace("_", "-"))
    return Option(
        name=declared.name,
        flags=(first, *("--" + alias for alias in known["aliases"])),
        default=declared.default,
        shape="json" if known["json"] else value_kind(hint),
        choices=known["choices"],
        states=known["states"],
        help=known["help"],
        trivial=known["trivial"],
        values=known["values"],
        secret=known["secret"],
        slice_name=slice_name,
        plugins=known["plugins"],
    )


def value_kind(hint: Any) -> str:
    """bool, int, float or str from an annotation, "list of int" and so on from a tuple."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return value_kind(inner[0])
    if typing.get_origin(hint) is tuple:
        return f"list of {value_kind(typing.get_args(hint)[0])}"
    return {bool: "bool", int: "int", float: "float"}.get(hint, "str")
