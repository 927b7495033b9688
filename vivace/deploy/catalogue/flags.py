"""Names, values and spellings of Vivace's own flags and variables, as data: flags.json.

It is made from `vivace.config`, whose classes take longer to load than a check may take
(`python -m vivace.deploy.document`; a test keeps it current).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from vivace.deploy.files import packaged_path
from vivace.files import read_file

FILE = "catalogue/flags.json"
LARGEST = 1 << 22
"""bytes"""


class ServerFlag(msgspec.Struct, frozen=True, omit_defaults=True):
    """An option of Vivace: `config.option.Option` without its states but for `refused` choices."""

    name: str
    flags: tuple[str, ...]
    shape: str
    default: Any = None
    choices: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    secret: bool = False
    plugins: str = ""

    @property
    def flag(self) -> str:
        return self.flags[0]

    @property
    def offered(self) -> tuple[str, ...]:
        return tuple(choice for choice in self.choices if choice not in self.refused)


class KnownVariable(msgspec.Struct, frozen=True, omit_defaults=True):
    """`dead`: no program reads it."""

    name: str
    kind: str
    dead: bool = False


class Tables(msgspec.Struct, frozen=True):
    flags: tuple[ServerFlag, ...]
    variables: dict[str, KnownVariable]


@cache
def tables() -> Tables:
    return msgspec.json.decode(read_file(packaged_path(FILE), LARGEST), type=Tables)


def flags_json() -> bytes:
    """The content of flags.json."""
    from vivace.config.config import all_options
    from vivace.config.variables import DEAD, VARIABLES

    flags = tuple(
        ServerFlag(
            name=option.name,
            flags=option.flags,
            shape=option.shape,
            default=option.default,
            choices=tuple(option.choices),
            refused=tuple(filter(option.is_refused, option.choices)),
            secret=option.secret,
            plugins=option.plugins,
        )
        for option in all_options()
    )
    variables = {
        name: KnownVariable(name, known.kind, known.state is DEAD)
        for name, known in VARIABLES.items()
    }
    raw = msgspec.json.encode(Tables(flags, variables))
    return msgspec.json.format(raw, indent=1) + b"\n"
