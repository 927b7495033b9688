"""The command `vivace`. What a subcommand needs is imported when it is called, not before."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vivace.commands import COMMANDS, HANDLERS, help_text, unknown_word
from vivace.errors import (
    CANNOT_START,
    CannotStart,
    exit_code,
    is_of_output,
    one_line_without_memory,
)
from vivace.terminal import (
    escape_what_has_no_code,
    forget_wrong_sizes,
    open_closed_streams,
    outlive_reader,
)

ONE_PROCESS = ("bench", "chat", "doctor", "train")
"""commands that may load a model themselves"""
COMPLETION = ("--install-completion", "--show-completion", "--complete")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    if words[:1] != ["chat"]:  # whose whole work is to be read
        outlive_reader()
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
        # The reader of a chat (`| head`) has gone; nothing more can be said to it.
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
        return HANDLERS.get("version")([])
    if words[0] in COMPLETION:
        return import_module("vivace.completion").main(words, os.environ)
    if words[0] not in HANDLERS:
        return unknown_word("vivace", "command", words[0], COMMANDS)
    if words[0] == "serve":
        from vivace.supervisor.signals import stop_on_signals

        with stop_on_signals("vivace serve"):
            return HANDLERS.get("serve")(words[1:])
    if words[0] not in ONE_PROCESS:
        return HANDLERS.get(words[0])(words[1:])
    work = one_line_without_memory()(HANDLERS.get(words[0]))
    return exit_code(f"vivace {words[0]}", lambda: work(words[1:]), cannot=(CannotStart,))


if __name__ == "__main__":
    sys.exit(main())
