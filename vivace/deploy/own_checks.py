"""What Vivace itself says at start-up of flags, and of a model that lies here; of no machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vivace.checkpoint.pooling import read_pooling
from vivace.checkpoint.source import locate
from vivace.config.checks import MODEL_CHECKS, OPTION_CHECKS, PAIR_CHECKS
from vivace.config.config import ModelContext, Options, with_values
from vivace.config.errors import ConfigError
from vivace.config.process_environment import KEYS_OF_THE_SERVER
from vivace.config.secret import Secret
from vivace.config.sharded_state import file_pattern
from vivace.config.values import parse_value
from vivace.deploy.catalogue.flags import ServerFlag
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.schema.deployment import FlagValue
from vivace.deploy.server_plan import ServerPlan, placeholder
from vivace.errors import CannotStart, cause
from vivace.models.facts import read_facts
from vivace.models.registry import check_architecture

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
    """Why Vivace refuses values that it takes alone, and a model that lies on this machine."""
    values = {
        option.name: parse_value(option, value)
        for flag, value in server.given.values()
        if (option := find_option(flag))
        and not placeholder(value)
        and not why_refused_alone(option, value)
    }
    if "api_key_file" in values or server.environment.get(KEYS_OF_THE_SERVER[0]):
        values["api_key"] = UNKNOWN_KEY
    made = with_values(Options(environment=dict(server.environment)), values)
    for check in PAIR_CHECKS:
        try:
            check(made)
        except ConfigError as error:
            yield str(error)
    if "model_path" in values or "model_path" not in server.given:
        yield from why_model_refused(made)


def why_model_refused(options: Options) -> Iterator[str]:
    """What the start says of a model whose files are here: the embedded one, a folder, a file."""
    model = options.model
    path = model.model_path
    if (path and not lies_here(Path(path))) or model.model_impl == "transformers":
        return
    try:
        source = locate(
            path,
            load_format=model.load_format,
            pattern=file_pattern(options),
            tokenizer_path=model.tokenizer_path,
            overrides=model.json_model_override_args,
        )
        check_architecture(source)
        context = ModelContext(source=source, facts=read_facts(source))
        for check in MODEL_CHECKS:
            check(options, context)
        if model.is_embedding:
            read_pooling(source, context.facts.hidden_size)
    except (CannotStart, OSError) as error:
        if path is not None or isinstance(error, ConfigError):  # else: it is not installed here
            yield cause(error)


def lies_here(path: Path) -> bool:
    """A folder or a file on this machine; what cannot be looked at is not."""
    try:
        return path.is_dir() or path.is_file()
    except (OSError, ValueError):
        return False
