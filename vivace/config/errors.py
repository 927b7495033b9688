"""What is wrong with a setting, told by the name that the user knows it by."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING

from vivace.errors import CannotStart

if TYPE_CHECKING:
    from vivace.config.config import Config, Options

FLAG = re.compile(r"--[a-z][a-z0-9-]*")


class ConfigError(CannotStart):
    """A setting is wrong; the text is for the user to read."""


def as_typed(text: str, names: Mapping[str, str]) -> str:
    """`names`: `Options.names`"""
    return FLAG.sub(lambda found: names.get(found[0], found[0]), text)


def tell_as_typed(configure: Callable[[Options], Config]) -> Callable[[Options], Config]:
    """Of several names of a flag errors have the one that was given."""

    @wraps(configure)
    def told(options: Options) -> Config:
        try:
            return configure(options)
        except CannotStart as error:
            error.args = (as_typed(str(error), options.names),)
            raise

    return told
