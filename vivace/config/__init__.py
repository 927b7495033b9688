"""What was asked -> what will run."""

from vivace.config.config import Config, ConfigError, Options, Rewrite
from vivace.config.parse import from_arguments, parse
from vivace.config.resolve import resolve
from vivace.config.wire import decode, encode, public

__all__ = [
    "Config",
    "ConfigError",
    "Options",
    "Rewrite",
    "decode",
    "encode",
    "from_arguments",
    "parse",
    "public",
    "resolve",
]
