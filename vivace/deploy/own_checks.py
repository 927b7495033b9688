"""What Vivace itself says of flags at start-up, before it looks at a model and a machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.config.checks import OPTION_CHECKS, PAIR_CHECKS
from vivace.config.config import Options, with_values
from vivace.config.errors import ConfigError
from vivace.config.process_environment import KEYS_OF_THE_SERVER
from vivace.config.secret import Secret
from vivace.config.values import parse_value
from vivace.deploy.catalogue.flags import ServerFlag
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.schema.deployment import FlagValue
from vivace.deploy.server_plan import ServerPlan, placeholder

UNKNOWN_KEY = Secret("a key that is not read here")


def why_refused_alone(option: ServerFlag, value: FlagValue) -> str:
    """Why Vivace refuses a value, whatever else is given; empty if it takes it."""
    try:
        options = with_values(Options(), {option.name: parse_value(option, value)})
        for check in OPTION_CHECKS:
            check(options)
    except ConfigError as error:
        return str(error)
    return ""


def why_refused_together(server: ServerPlan) -> Iterator[str]:
    """Why Vivace refuses values that it takes alone."""
    values: dict[str, Any] = {}
    for name, (flag, value) in server.given.items():
        option = find_option(flag)
        if option and not placeholder(value) and not why_refused_alone(option, value):
            values[name] = value
    if "api_key_file" in values or server.environment.get(KEYS_OF_THE_SERVER[0]):
        values["api_key"] = UNKNOWN_KEY
    made = with_values(Options(), values)
    for check in PAIR_CHECKS:
        try:
            check(made)
        except ConfigError as error:
            yield str(error)
