"""The conversation in the terminal: read a message, show the answer, until somebody leaves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console

from vivace.chat.backend import Backend, ChatError
from vivace.chat.commands import Commands, Leave
from vivace.chat.conversation import Conversation
from vivace.chat.lines import Lines
from vivace.chat.screen import Screen, print_note
from vivace.echo import echo_off


class Session:
    """`console` gets what is not an answer; every answer has a `screen` of its own."""

    def __init__(
        self,
        backend: Backend,
        conversation: Conversation,
        settings: dict[str, float],
        screen: Callable[[], Screen],
        console: Console,
    ) -> None:
        self._backend = backend
        self._conversation = conversation
        self._settings = settings
        self._screen = screen
        self._console = console
        self._commands = Commands(conversation, settings, self._exchange)
        self._failures = 0

    def run(self, lines: Lines) -> int:
        """Until /bye or the end of the input; how many messages or commands went wrong."""
        self._tell(f"{self._backend.describe()}. /help shows commands.")
        while True:
            try:
                line = lines.read()
            except EOFError:
                return self._failures
            except KeyboardInterrupt:
                self._tell("\n(/bye or Ctrl-D to leave)")
                continue
            except UnicodeDecodeError as error:
                self._complain(f"standard input is no text: {error}")
                return self._failures
            except ChatError as error:
                self._complain(str(error))
                return self._failures
            try:
                if line.startswith("/"):
                    self._tell(self._commands.obey(line))
                elif line.strip():
                    self._exchange(line)
            except Leave:
                return self._failures
            except ChatError as error:
                self._complain(str(error))

    def ask_once(self, text: str) -> int:
        """One question, its answer and nothing else; how many went wrong. KeyboardInterrupt stops
        it."""
        self._conversation.say("user", text)
        answer = self._answer(quiet=True)
        if answer.interrupted:
            raise KeyboardInterrupt
        return self._failures

    def _exchange(self, text: str) -> None:
        self._conversation.say("user", text)
        answer = self._answer(quiet=False)
        if answer.text or not answer.failed:
            self._conversation.say("assistant", answer.text)
        else:
            self._conversation.take_back()

    def _answer(self, *, quiet: bool) -> PartialAnswer:
        with echo_off(sys.stdout, keep_end=not quiet and sys.stdin.isatty()):
            return self._show_answer(quiet=quiet)

    def _show_answer(self, *, quiet: bool) -> PartialAnswer:
        answer = PartialAnswer()
        screen = self._screen()
        chunks = self._backend.answer(self._conversation.messages(), self._settings)
        problem = ""
        try:
            for chunk in chunks:
                answer.take(chunk.text, chunk.tokens, chunk.cut)
                screen.add(chunk.text)
        except KeyboardInterrupt:
            answer.interrupted = True
        except ChatError as error:
            answer.failed, problem = True, str(error)
        finally:
            chunks.close()
        if answer.text or not answer.failed:
            screen.end()
        if answer.failed:
            self._complain(problem)
        notes = [answer.end_reason(), "" if quiet or not answer.tokens else answer.speed()]
        self._tell("\n".join(note for note in notes if note))
        return answer

    def _tell(self, text: str) -> None:
        if text:
            print_note(self._console, text)

    def _complain(self, text: str) -> None:
        self._failures += 1
        print_note(self._console, text, style="red")


class PartialAnswer:
    """What has come of an answer, and when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin, self._first = clock(), 0.0
        self._parts: list[str] = []
        self.tokens = 0
        self.cut = self.interrupted = self.failed = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def take(self, text: str, tokens: int, cut: bool) -> None:
        self._first = self._first or self._clock()
        self._parts.append(text)
        self.tokens = tokens
        self.cut = self.cut or cut

    def end_reason(self) -> str:
        """Why it ended, where it did not end by itself."""
        if self.interrupted:
            return "[stopped]"
        if self.cut:
            return (
                f"[cut off after {self.tokens} tokens: --max-tokens or /set max_tokens allows more "
                "(0: the rest of the context)]"
            )
        return ""

    def speed(self) -> str:
        now = self._clock()
        if self.tokens < 2 or now <= self._first:
            return f"{self.tokens} tokens"
        return (
            f"{self.tokens} tokens, first after {self._first - self._begin:.2f} s, "
            f"then {(self.tokens - 1) / (now - self._first):.1f} tok/s"
        )
