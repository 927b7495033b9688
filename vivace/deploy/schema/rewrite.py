"""Changing values of a deployment.yaml in place; comments and order stay."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from vivace.deploy.files import MAX_BYTES
from vivace.deploy.schema.deployment import DeploymentError
from vivace.deploy.schema.files import load
from vivace.files import PathName, read_file


def rewrite(path: PathName, changes: Mapping[tuple[str, ...], Any]) -> str:
    """The file's new text, with a value set for each path of keys. The result is checked to be a
    deployment still. Raises DeploymentError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    load(path)
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 4096
    try:
        content = editor.load(read_file(path, MAX_BYTES).decode())
    except YAMLError as error:
        raise DeploymentError(f"{path}: {error}") from None
    for keys, value in changes.items():
        place(content, keys)[keys[-1]] = value
    text = io.StringIO()
    editor.dump(content, text)
    return text.getvalue()


def place(content: Any, keys: tuple[str, ...]) -> Any:
    """The mapping that holds the last key; missing mappings on the way are created."""
    for key in keys[:-1]:
        if key not in content or content[key] is None:
            content[key] = {}
        content = content[key]
    return content
