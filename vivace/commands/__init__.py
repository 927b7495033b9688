"""The subcommands of `vivace`, each in a file of this folder, imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vivace.errors import CANNOT_START
from vivace.registry import Registry

COMMANDS = {
    "serve": "start a server (OpenAI and SGLang compatible)",
    "chat": "talk to a model in the terminal, or ask it one question",
    "bench": "measure a server or its parts: `vivace bench` lists how",
    "check": "is a deployment valid, does it fit? files or one command",
    "deploy": "deployments as one file: import scripts, render them",
    "doctor": "is this node set up to serve? what mends it?",
    "flags": "every flag of `vivace serve` and what it does here",
    "pull": "fetch a model from the hub, or install the embedded one",
    "list": "the models on this machine",
    "rm": "delete a model from the local cache",
    "save-sharded-state": "a checkpoint as files of single ranks, for many devices",
    "train": "a head that drafts for a model, made on this machine",
    "version": "versions of vivace, python and torch",
}
HANDLERS: Registry[Callable[[list[str]], int]] = Registry(
    "command",
    {
        "serve": "vivace.commands.serve:main",
        "chat": "vivace.commands.chat:main",
        "bench": "vivace.commands.bench:main",
        "check": "vivace.commands.fast_start:check",
        "deploy": "vivace.commands.deploy:main",
        "doctor": "vivace.commands.doctor:main",
        "flags": "vivace.commands.flags:main",
        "pull": "vivace.commands.models:pull",
        "list": "vivace.commands.models:list_models",
        "rm": "vivace.commands.models:remove_models",
        "save-sharded-state": "vivace.commands.save_sharded_state:main",
        "train": "vivace.commands.train:main",
        "version": "vivace.commands.version:main",
    },
)
ELSEWHERE = {
    "run": "`vivace chat --local --model-path MODEL` talks to one, `vivace serve` serves one",
    "ps": "a server says what it runs: GET /server_info",
    "show": "a server says what it runs: GET /model_info; `vivace list` has the models here",
    "create": "there is no Modelfile: `vivace serve` takes its settings as flags (`vivace flags`)",
    "start": "`vivace serve` starts a server",
    "launch_server": "`vivace serve`, or python -m vivace.launch_server, starts a server",
    "stop": "a server ends with Ctrl-C or SIGTERM",
    "complete": '`vivace chat "TEXT"` answers one question',
}
"""what Ollama and vLLM call what is called otherwise here"""


def help_text(program: str, what: str, table: Mapping[str, str]) -> str:
    width = max(map(len, table))
    lines = [f"  {name:<{width}}  {text}" for name, text in table.items()]
    usage = f"usage: {program} {what} [ARGUMENTS]"
    return "\n".join([usage, "", *lines, "", f"Run `{program} {what} --help` for details."])


def unknown_word(program: str, kind: str, word: str, table: Mapping[str, str]) -> int:
    """Says so on stderr; the exit code."""
    import difflib

    from vivace.terminal import print_wrapped

    if word in ELSEWHERE and table is COMMANDS:
        print_wrapped(f"{program}: unknown {kind} {word!r}; {ELSEWHERE[word]}")
        return CANNOT_START
    near = difflib.get_close_matches(word, (*table, "--help"), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(table)}"
    print_wrapped(f"{program}: unknown {kind} {word!r}; {hint}")
    return CANNOT_START
