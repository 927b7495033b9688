"""The command `vivace`. What a subcommand needs is imported when it is called, not before."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import vivace
from vivace.errors import CANNOT_START

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
    "stop": "a server ends with Ctrl-C or SIGTERM",
    "complete": '`vivace chat "TEXT"` answers one question',
}
"""what Ollama and vLLM call what is called otherwise here"""
COMPLETION = ("--install-completion", "--show-completion", "--complete")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return obey(words)
        finally:
            print(end="", flush=True)  # at the interpreter's end errors could not be caught
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def obey(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text("vivace", "COMMAND", COMMANDS))
        print("`vivace --install-completion [bash|zsh|fish]` completes them in your shell.")
        return 0 if words else CANNOT_START
    if words[0] in ("-V", "--version"):
        return version([])
    if words[0] in COMPLETION:
        return import_module("vivace.completion").main(words, os.environ)
    handler = handlers().get(words[0])
    if handler is None:
        return unknown("vivace", "command", words[0], COMMANDS)
    return handler(words[1:])


def handlers() -> dict[str, Callable[[list[str]], int]]:
    return {
        "serve": lambda words: import_module("vivace.launch.serve").main(words),
        "chat": lambda words: import_module("vivace.chat.command").main(words),
        "bench": bench,
        "check": check,
        "deploy": lambda words: import_module("vivace.deploy.command").main(words),
        "doctor": lambda words: import_module("vivace.doctor.command").main(words),
        "flags": lambda words: import_module("vivace.config.flags_command").main(words),
        "pull": lambda words: import_module("vivace.hub.command").pull(words),
        "list": lambda words: import_module("vivace.hub.command").list_models(words),
        "rm": lambda words: import_module("vivace.hub.command").remove_models(words),
        "version": version,
    }


def bench(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(help_text("vivace bench", "BENCHMARK", BENCHES))
        return 0 if words else CANNOT_START
    if words[0] not in BENCHES:
        return unknown("vivace bench", "benchmark", words[0], BENCHES)
    module = import_module(f"vivace.bench.{words[0].replace('-', '_')}")
    return module.main(words[1:])


def check(words: list[str]) -> int:
    # It is over before collecting garbage could pay.
    gc.disable()
    import_msgspec_alone()
    return import_module("vivace.deploy.check").main(words)


def import_msgspec_alone() -> None:
    """msgspec takes the helpers of typing_extensions where that is installed, else those of typing,
    which since Python 3.11 do the same. Loading it takes as long as all rules of the check."""
    module = "typing_extensions"
    if module in sys.modules or "msgspec" in sys.modules:
        return
    # An entry of None makes the import fail, which msgspec expects.
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        import_module("msgspec")
    finally:
        del sys.modules[module]


def version(words: list[str]) -> int:
    import argparse

    argparse.ArgumentParser(
        prog="vivace version", description="Versions of vivace, python and torch."
    ).parse_args(words)
    print(f"vivace {vivace.__version__}")
    print(f"python {sys.version.split()[0]}")
    print(f"torch {installed('torch')}")
    return 0


def installed(package: str) -> str:
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


def unknown(program: str, kind: str, word: str, table: dict[str, str]) -> int:
    import difflib

    from vivace.wrapping import print_wrapped

    if word in ELSEWHERE and table is COMMANDS:
        print_wrapped(f"{program}: unknown {kind} {word!r}; {ELSEWHERE[word]}")
        return CANNOT_START
    near = difflib.get_close_matches(word, table, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(table)}"
    print_wrapped(f"{program}: unknown {kind} {word!r}; {hint}")
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
