"""The command `vivace chat`: flags, who answers, one question or a session."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from functools import partial

from rich.console import Console

from vivace.arguments import ArgumentParser, http_address, utf8_text
from vivace.chat.backend import SETTINGS, Backend, ChatError, read_setting
from vivace.chat.commands import TYPING
from vivace.chat.conversation import Conversation
from vivace.chat.interrupts import wake_on_signals
from vivace.chat.lines import LARGEST_INPUT, History, Lines, edit_lines, read_line
from vivace.chat.remote import RemoteBackend
from vivace.chat.screen import print_note, screen_for
from vivace.chat.session import Session
from vivace.config.process_environment import KEY_VARIABLES, client_key, state_folder
from vivace.errors import FAILED, CannotStart, exit_code
from vivace.terminal import make_console

DEFAULT_URL = "http://127.0.0.1:30000"
MAX_TOKENS = 1024
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 when nothing answers or anything that was asked in a line of its own or in a
    pipe went wrong; 2 for wrong flags and models that cannot be loaded; 130 when a question was
    interrupted."""
    arguments = parser().parse_args(argv)
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors == "surrogateescape":
        # The C locale: what is no text is refused, as in any other.
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    return exit_code(
        "vivace chat", lambda: talk(arguments), cannot=(CannotStart,), failed=(ChatError,)
    )


def talk(arguments: argparse.Namespace) -> int:
    settings = parse_settings(arguments)
    console = make_console(sys.stderr)
    question = read_question(arguments.prompt)
    with wake_on_signals():
        return converse(arguments, console, settings, question)


def converse(
    arguments: argparse.Namespace,
    console: Console,
    settings: dict[str, float],
    question: str | None,
) -> int:
    backend = open_backend(arguments, console)
    session = Session(
        backend,
        Conversation(system=arguments.system or ""),
        settings,
        screen_for(Console(highlight=False), plain=arguments.plain),
        console,
    )
    if question is not None:
        try:
            return FAILED if session.ask_once(question) else 0
        except KeyboardInterrupt:
            return INTERRUPTED
    if not sys.stdin.isatty():
        return FAILED if session.run(Lines(read_line)) else 0
    session.run(Lines(read_line, edit_lines(open_history(arguments, console))))
    return 0


def read_question(words: list[str]) -> str | None:
    """The question of the command line, behind what is piped in, as `ollama run` has it; None
    without one. Raises ChatError, and CannotStart for an empty one."""
    if not words:
        return None
    question = " ".join(words)
    if not question.strip():
        raise CannotStart("the question is empty; `vivace chat` alone begins a conversation")
    if sys.stdin is None or sys.stdin.isatty():
        return question
    try:
        given = sys.stdin.read(LARGEST_INPUT + 1)
    except UnicodeDecodeError as error:
        raise ChatError(f"standard input is no text: {error}") from None
    if len(given) > LARGEST_INPUT:
        raise ChatError(f"standard input has more than {LARGEST_INPUT:,} characters")
    return f"{given} {question}" if given else question


def open_backend(arguments: argparse.Namespace, console: Console) -> Backend:
    """Who answers. Raises CannotStart, and ChatError when a server does not."""
    remote = {
        "--url": arguments.url, "--api-key": arguments.api_key, "--model": arguments.model
    }  # fmt: skip
    given = [flag for flag, value in remote.items() if value is not None]

    tell = partial(print_note, console)
    if not arguments.local and arguments.model_path is None:
        key = client_key(arguments.api_key)
        return RemoteBackend(arguments.url or DEFAULT_URL, key, arguments.model, tell)
    local = "--local" if arguments.local else "--model-path"
    if given:
        verb = "means" if len(given) == 1 else "mean"
        raise CannotStart(
            f"{local} loads a model in this process, {' and '.join(given)} {verb} a running "
            "server: give one or the other"
        )
    if not arguments.local:
        tell("--model-path means --local: the model is to be loaded in this process.")
    from vivace.chat.local import LocalBackend

    return LocalBackend(arguments.model_path, console)


def parse_settings(arguments: argparse.Namespace) -> dict[str, float]:
    """Ends the program over a value that is no number, as argparse does."""
    texts = {name: getattr(arguments, name) for name in SETTINGS}
    try:
        return {name: read_setting(name, text) for name, text in texts.items() if text is not None}
    except ChatError as error:
        name, _, problem = str(error).partition(":")
        parser().error(f"--{name.replace('_', '-')}:{problem}")


def open_history(arguments: argparse.Namespace, console: Console) -> History | None:
    folder = None if arguments.no_history else state_folder()
    if folder is None:
        return None
    return History(folder / "chat_history", partial(print_note, console))


def parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="vivace chat",
        description="Talk to a model; with a question, print its answer and end.",
        epilog=TYPING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "prompt",
        nargs="*",
        type=utf8_text,
        metavar="QUESTION",
        help="one question; what is piped in stands before it",
    )
    add("--url", type=http_address, help=f"server (default: {DEFAULT_URL})")
    add(
        "--api-key",
        help=f"bearer key, sent to the server of --url (default: {', '.join(KEY_VARIABLES)})",
    )
    add("--model", type=utf8_text, help="model name (default: the server's first)")
    add("--local", action="store_true", help="load a model in this process")
    add("--model-path", help="the model of --local, which it implies (default: the embedded one)")
    add("--system", type=utf8_text, help="system message")
    add(
        "--max-tokens",
        default=str(MAX_TOKENS),
        metavar="N",
        help=f"longest answer in tokens (default: {MAX_TOKENS}; 0: the rest of the context)",
    )
    for name in SETTINGS:
        if name != "max_tokens":
            add(
                f"--{name.replace('_', '-')}",
                metavar="N",
                help=f"{SETTINGS[name]} (default: {SETTINGS[name].default})",
            )
    add("--plain", action="store_true", help="show answers as they come, without Markdown")
    add("--no-history", action="store_true", help="neither read nor keep what is typed")
    return parser
