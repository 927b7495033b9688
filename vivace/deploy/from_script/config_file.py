"""`--config FILE`: a YAML mapping of flags; those of the command line count before them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vivace.deploy.from_script.flags import canonical, parse_flags
from vivace.deploy.from_script.programs import Invocation
from vivace.deploy.shell.interpreter import Follow


def with_config(
    called: Invocation, follow: Follow, texts: dict[str, str]
) -> tuple[Invocation, str]:
    """(the command with the flags of its file in place of --config, why they are not read); the
    file is added to `texts`."""
    at = [at for at, word in enumerate(called.words) if word.partition("=")[0] == "--config"]
    if not at:
        return called, ""
    from vivace.deploy.schema.files import parse_yaml, yaml

    given = parse_flags(called.words, called.part).flags
    name, opened = str(given["config"]), follow(str(given["config"]).removeprefix("./"))
    if opened is None:
        return called, f"--config {name} is not read: it is not beside the script"
    try:
        content = parse_yaml(opened[1])[0]
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        return called, f"--config {name} is not read: {error}"
    if not isinstance(content, dict):
        return called, f"--config {name} is not read: it is no mapping of flags"
    texts[opened[0]] = opened[1]
    own = {canonical(flag) for flag in given}
    words = [word for key, value in content.items() for word in as_words(str(key), value, own)]
    rest = called.words[at[-1] + (1 if "=" in called.words[at[-1]] else 2) :]
    return Invocation(called.part, called.program, (*called.words[: at[-1]], *words, *rest)), ""


def as_words(key: str, value: Any, given: set[str]) -> Iterator[str]:
    """Of a setting of the file; none for one that the command line has too, or that is off."""
    name = key.lstrip("-").replace("_", "-")
    if value is None or value is False or canonical(name) in given:
        return
    yield "--" + name
    for each in value if isinstance(value, list) else [] if value is True else [value]:
        yield json.dumps(each) if isinstance(each, dict | list) else str(each)
