"""Clients of other languages: the conversation of test_client_conversations.py in JavaScript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from scripted_model import ANSWER, ARGUMENTS, DEMAND, KEY, QUESTION, RESULT, SCHEMA, serving_script
from server_kit import MODEL

MODULES = "VIVACE_NODE_MODULES"
"""names a folder with the packages, as `npm install openai ai @ai-sdk/openai ...` fills it"""
SCRIPTS = Path(__file__).with_name("clients")


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("openai.mjs", ("openai",)),
        ("ai.mjs", ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible")),
    ],
)
def test_a_conversation(script: str, packages: tuple[str, ...], tmp_path: Path) -> None:
    node, modules = find_node(packages)
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(SCRIPTS / script, tmp_path)
    with serving_script() as server:
        told = {
            "url": server.url,
            "key": KEY,
            "model": MODEL,
            "question": QUESTION,
            "demand": DEMAND,
            "result": RESULT,
            "answer": ANSWER,
            "args": ARGUMENTS,
            "schema": SCHEMA,
        }
        command = [node, str(tmp_path / script), json.dumps(told)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


def find_node(packages: tuple[str, ...]) -> tuple[str, Path]:
    """(node, the folder with the packages); skips the test without them."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    modules = Path(os.environ.get(MODULES, "node_modules")).absolute()
    if missing := [name for name in packages if not (modules / name).is_dir()]:
        pytest.skip(f"{MODULES} names no folder with {', '.join(missing)}")
    return node, modules
