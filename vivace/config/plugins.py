"""What installed packages add: names of entry points, which are choices of an option, too. Nothing
of them is loaded here, and the command line names no code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vivace.config.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def installed(group: str) -> tuple[str, ...]:
    """Names in a group of entry points; none of an empty one."""
    from importlib import metadata  # a large module, which few commands need

    return tuple(sorted(metadata.entry_points(group=group).names)) if group else ()


def load_installed(group: str, name: str) -> Any:
    """What an entry point names. Raises ConfigError where it cannot be had."""
    found = find_installed(group, name)
    try:
        return found.load()
    except Exception as error:  # it is other people's code
        raise ConfigError(
            f"{name} is {found.value} (entry point of {group}), which cannot be loaded: "
            f"{type(error).__name__}: {error}; install its package again"
        ) from None


def find_installed(group: str, name: str) -> EntryPoint:
    """Raises ConfigError where several packages bring one."""
    from importlib import metadata

    first, *others = metadata.entry_points(group=group, name=name)
    if any((one.value, package(one)) != (first.value, package(first)) for one in others):
        told = ", ".join(sorted(f"{package(one)} ({one.value})" for one in (first, *others)))
        raise ConfigError(
            f"{name}: several installed packages bring one (entry points of {group}): {told}; "
            "uninstall all but one"
        )
    return first


def package(found: EntryPoint) -> str:
    """Its name and version."""
    about = found.dist
    return f"{about.name} {about.version}" if about is not None else "a package without a name"
