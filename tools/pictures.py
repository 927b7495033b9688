"""Makes docs/pictures again: terminals of 80 columns as SVG, pages and plots as PNG.

    .venv/bin/python tools/pictures.py [NAME...]

Needs tmux and chromium beside Vivace. What is typed is below; the machine's answers differ.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

VIVACE = str(Path(sys.executable).with_name("vivace"))
PICTURES = Path(__file__).resolve().parents[1] / "docs/pictures"
COLUMNS = 80
SHELL = "$"
CHAT = ">>>"
TERMINALS = {
    "help": [("vivace", SHELL), ("vivace serve --help | head -n 21", SHELL)],
    "doctor": [("vivace doctor", SHELL)],
    "chat": [
        ("vivace chat --local --temperature 0", CHAT),
        ("Explain gravity in two sentences.", CHAT),
        ("Write a Python function that adds two numbers.", CHAT),
    ],
}
"""what is typed into each, and what the last line is when its answer is complete"""
CHECKED = "tests/deploy/scripts/separated.sh --hardware a3 --cards 32 --input 3500 --output 1500"
LOAD = """--dataset-name random --random-input-len 128 --random-output-len 64
--random-range-ratio 1 --num-prompts 96 --max-concurrency 16"""


def terminal(name: str) -> None:
    lines = [line.rstrip() for line in screen(TERMINALS[name]).rstrip().splitlines()]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi("\n".join(lines)), soft_wrap=True)
    drawn = console.export_svg(title="", theme=MONOKAI)
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # no font from elsewhere
    (PICTURES / f"{name}.svg").write_text(drawn)


def screen(scene: list[tuple[str, str]]) -> str:
    """What a terminal shows after the scene, with its colors."""
    name = f"pictures-{os.getpid()}"

    def tmux(*words: str) -> str:
        command = ["tmux", "-L", name, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    tmux("-f", os.devnull, "new-session", "-d", "-x", str(COLUMNS), "-y", "60",
         "env", f"PATH={path}", "PS1=$ ", "bash", "--norc")  # fmt: skip
    try:
        shown = ""
        for typed, prompt in [("", SHELL), *scene]:
            if typed:
                tmux("send-keys", "-l", typed)
                tmux("send-keys", "Enter")
            before, shown = shown, ""
            while shown == before or shown.rpartition("\n")[2].rstrip() != prompt:
                time.sleep(0.5)
                shown = tmux("capture-pane", "-p").rstrip()
        return tmux("capture-pane", "-p", "-e")
    finally:
        tmux("kill-server")


def check() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder, "check.html"), PICTURES / "check.png"
        vivace(f"check {CHECKED} --html {page}", check=False)
        options = "--headless --no-sandbox --hide-scrollbars --disable-gpu --window-size=900,700"
        words = ["chromium", *options.split(), f"--screenshot={picture}", page.as_uri()]
        subprocess.run(words, check=True, capture_output=True)


def plot() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([VIVACE, "serve", "--port", str(port), "--log-level", "error"])
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = f"--port {port} --plot {PICTURES}/bench.png --output-file {folder}/run.jsonl"
            vivace(f"bench serving --backend vivace {LOAD} {options}")
    finally:
        server.terminate()
        server.wait()


def vivace(words: str, check: bool = True) -> None:
    subprocess.run([VIVACE, *shlex.split(words)], check=check)


PICTURE_OF = {"check": check, "bench": plot}

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or [*TERMINALS, *PICTURE_OF]:
        PICTURE_OF.get(name, lambda name=name: terminal(name))()
