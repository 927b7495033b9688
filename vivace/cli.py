"""The command `vivace`. What a subcommand needs is imported when it is called, not before."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import vivace
from vivace.errors import (
    CANNOT_START,
    CannotStart,
    exit_code,
    is_of_output,
    one_line_without_memory,
)
from vivace.registry import Registry
from vivace.terminal import escape_what_has_no_code, forget_wrong_sizes, open_closed_streams

COMMANDS = {
    "serve": "start a server (OpenAI and SGLang compatible)",
    "chat": "talk to a model in the terminal, or ask it one question",
    "bench": "measure a server, the engine, kernels: `vivace bench` lists how",
    "check": "is a deployment valid, does it fit? a file, scripts or one command",
    "deploy": "deployments as one file: import scripts, render for what starts them",
    "doctor": "is this node set up to serve? what mends it?",
    "flags": "every flag of `vivace serve` and what it does here",
    "pull": "fetch a model from the hub by name, or install the embedded one",
    "list": "the models on this machine",
    "rm": "delete a model from the local cache",
    "version": "versions of vivace, python and torch",
}
HANDLERS: Registry[Callable[[list[str]], int]] = Registry(
    "command",
    {
        "serve": "vivace.launch.serve:main",
        "chat": "vivace.chat.command:main",
        "bench": "vivace.cli:bench",
        "check": "vivace.cli:check",
        "deploy": "vivace.deploy.command:main",
        "doctor": "vivace.doctor.command:main",
        "flags": "vivace.config.flags_command:main",
        "pull": "vivace.hub.command:pull",
        "list": "vivace.hub.command:list_models",
        "rm": "vivace.hub.command:remove_models",
        "version": "vivace.cli:version",
    },
)
"""command -> where it is; each room has its own commands"""
BENCHES = {
    "serving": "a running server under load (also: python -m vivace.bench_serving)",
    "offline": "throughput of the engine in one process",
    "one-batch": "one batch: prefill and decode time",
    "scheduler": "time to plan and commit a step",
    "check": "time of `vivace check`, with the interpreter's start",
    "kernels": "the CPU's linear layers beside the machine's limits",
    "peers": "this server against others on the same workload",
    "sse": "CPU time of a streamed chunk in the frontend",
    "soak": "many streams with random aborts: nothing may leak or fail",
}
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
ONE_PROCESS = ("bench", "chat", "doctor")
"""commands that may load a model themselves"""
COMPLETION = ("--install-completion", "--show-completion", "--complete")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    forget_wrong_sizes(os.environ)
    codecs.register_error("vivace-escape", escape_what_has_no_code)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a locale has no characters for is escaped
            stream.reconfigure(errors="vivace-escape")
    try:
        try:
            return run(words)
        finally:
            print(end="", flush=True)  # at the interpreter's end errors could not be caught
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if not is_of_output(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"vivace: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text("vivace", "COMMAND", COMMANDS))
        print("`vivace --install-completion [bash|zsh|fish]` completes them in your shell.")
        return 0 if words else CANNOT_START
    if words[0] in ("-V", "--version"):
        return version([])
    if words[0] in COMPLETION:
        return import_module("vivace.completion").main(words, os.environ)
    if words[0] not in HANDLERS:
        return unknown_word("vivace", "command", words[0], COMMANDS)
    if words[0] not in ONE_PROCESS:
        return HANDLERS.get(words[0])(words[1:])
    work = one_line_without_memory()(HANDLERS.get(words[0]))
    return exit_code(f"vivace {words[0]}", lambda: work(words[1:]), cannot=(CannotStart,))


def bench(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(help_text("vivace bench", "BENCHMARK", BENCHES))
        return 0 if words else CANNOT_START
    if words[0] not in BENCHES:
        return unknown_word("vivace bench", "benchmark", words[0], BENCHES)
    module = import_module(f"vivace.bench.{words[0].replace('-', '_')}")
    return module.main(words[1:])


def check(words: list[str]) -> int:
    import_module("vivace.deploy.fast_start").prepare(words)
    return import_module("vivace.deploy.check").main(words)


def version(words: list[str]) -> int:
    from vivace.arguments import ArgumentParser

    ArgumentParser(
        prog="vivace version", description="Versions of vivace, python and torch."
    ).parse_args(words)
    print(f"vivace {vivace.__version__}")
    print(f"python {sys.version.split()[0]}")
    print(f"torch {installed_version('torch')}")
    return 0


def installed_version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def help_text(program: str, what: str, table: dict[str, str]) -> str:
    width = max(map(len, table))
    lines = [f"  {name:<{width}}  {text}" for name, text in table.items()]
    usage = f"usage: {program} {what} [ARGUMENTS]"
    return "\n".join([usage, "", *lines, "", f"Run `{program} {what} --help` for details."])


def unknown_word(program: str, kind: str, word: str, table: dict[str, str]) -> int:
    import difflib

    from vivace.terminal import print_wrapped

    if word in ELSEWHERE and table is COMMANDS:
        print_wrapped(f"{program}: unknown {kind} {word!r}; {ELSEWHERE[word]}")
        return CANNOT_START
    near = difflib.get_close_matches(word, table, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(table)}"
    print_wrapped(f"{program}: unknown {kind} {word!r}; {hint}")
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
