"""What installed packages add: names of entry points, which are choices of an option, too. Nothing
of them is loaded here, and the command line names no code."""

from __future__ import annotations

from typing import Any

from vivace.config.errors import ConfigError


def installed(group: str) -> tuple[str, ...]:
    """Names in a group of entry points; none of an empty one."""
    from importlib import metadata  # a large module, which few commands need

    return tuple(sorted(metadata.entry_points(group=group).names)) if group else ()


def load_installed(group: str, name: str) -> Any:
    """What an entry point names. Raises ConfigError where it cannot be had."""
    from importlib import metadata

    (found,) = metadata.entry_points(group=group, name=name)
    try:
        return found.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name} is {found.value} (entry point of {group}), which cannot be loaded: {error}; "
            "install its package again"
        ) from None
