"""Completion in bash, zsh and fish: a short script of the shell asks `vivace --complete WORDS...`.

What a command takes is read from its own help, so nothing is listed twice.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from vivace import cli
from vivace.commands import COMMANDS
from vivace.commands.bench import BENCHES
from vivace.errors import CANNOT_START
from vivace.files import write_own_file

BASH = """\
_vivace() {
    local IFS=$'\\n'
    COMPREPLY=($(vivace --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _vivace vivace
"""
ZSH = """\
#compdef vivace
local -a found
found=("${(@f)$(vivace --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
"""
FISH = """\
complete -c vivace -a '(vivace --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
READ_BY = {
    "bash": """\
New shells complete `vivace` where the package bash-completion is installed.
Without it add to ~/.bashrc:  . {path}""",
    "zsh": """\
New shells complete `vivace` when ~/.zshrc has
  fpath=({folder} $fpath); autoload -Uz compinit; compinit""",
    "fish": "New shells complete `vivace`.",
}
"""what makes a shell read its script"""
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
CHOICES = r"{flag}(?:[ =]|, --?[\w-]+ ?)*\{{([\w,.-]+)\}}"
PART = re.compile(r"^ {4}([a-z]+)  ", re.MULTILINE)


def main(words: list[str], environment: Mapping[str, str]) -> int:
    """--install-completion [SHELL], --show-completion [SHELL] or --complete WORDS..."""
    if words[0] == "--complete":
        found = candidates(words[1:])
        if found:
            print("\n".join(found))
        return 0
    shell = " ".join(words[1:]) or Path(environment.get("SHELL", "")).name
    if shell not in SCRIPTS:
        problem = f"there is none for {shell!r}" if shell else "$SHELL does not say which shell"
        print(f"vivace {words[0]}: {problem}; name one of {', '.join(SCRIPTS)}", file=sys.stderr)
        return CANNOT_START
    if words[0] == "--show-completion":
        print(SCRIPTS[shell], end="")
        return 0
    return install(shell, place(shell, environment))


def install(shell: str, path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_own_file(path, SCRIPTS[shell])
    except OSError as error:
        print(f"vivace --install-completion: {path}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"written: {path}")
    print(READ_BY[shell].format(path=shlex.quote(str(path)), folder=shlex.quote(str(path.parent))))
    return 0


def place(shell: str, environment: Mapping[str, str]) -> Path:
    """Where the shell (zsh: with one line in .zshrc) finds completions of the user."""
    data = Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    config = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion/completions/vivace",
        "zsh": data / "zsh/site-functions/_vivace",
        "fish": config / "fish/completions/vivace.fish",
    }[shell]


def candidates(words: list[str]) -> list[str]:
    """What the last of the words may become; none where the shell should offer files."""
    *before, typed = words or [""]
    command, names = parse_command(before)
    if names and not typed.startswith("-"):
        return [name for name in names if name.startswith(typed)]
    text = command_help(command)
    if before and before[-1].startswith("-"):
        choices = re.search(CHOICES.format(flag=re.escape(before[-1])), " ".join(text.split()))
        if choices:
            return [name for name in choices[1].split(",") if name.startswith(typed)]
    if not typed.startswith("-"):
        return []
    return sorted(flag for flag in {*FLAG.findall(text)} if flag.startswith(typed))


def parse_command(words: list[str]) -> tuple[list[str], list[str]]:
    """The command that the words name so far, and the names that may follow at once."""
    if not words:
        return [], list(COMMANDS)
    if words[0] not in COMMANDS:
        return [], []
    names = list(BENCHES) if words[0] == "bench" else PART.findall(command_help(words[:1]))
    if len(words) == 1 or words[1] not in names:
        return words[:1], names if len(words) == 1 else []
    return words[:2], []


def command_help(command: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.run([*command, "--help-all" if command == ["serve"] else "--help"])
    return out.getvalue()
