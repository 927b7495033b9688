"""`vivace chat` in a pseudo-terminal, as somebody sits before it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_kit import Handler, serving
from descriptors import is_readable

from vivace.chat.interrupts import wake_on_signals

PATIENCE = 60.0


class Sitting:
    """A chat in a terminal of its own. `output` is all it has written, without colors."""

    def __init__(self, *words: str, home: Path, columns: int = 60, shell: str = "") -> None:
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(home)}
        environment.pop("COLUMNS", None)
        environment.pop("INPUTRC", None)
        command = [sys.executable, "-m", "vivace", "chat", *words]
        if shell:
            environment |= {"PS1": "$ ", "ENV": "", "HOME": str(home)}
        self.process = subprocess.Popen(
            [shell, "-i"] if shell else command,
            stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )  # fmt: skip
        os.close(inner)
        self.output = ""
        if shell:
            self.type(f"{shlex.join(command)}\r")

    def wait_for(self, pattern: str) -> str:
        """What has come since the last call, up to this."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.output, re.DOTALL)) is None:
            assert self._more(deadline), f"no {pattern!r} in {self.output!r}"
        passed, self.output = self.output[: found.end()], self.output[found.end() :]
        return passed

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def stopped_in_background(self) -> None:
        """Once the shell knows: bash wakes none that stops just as it brings it back. What the chat
        still writes may stand in the middle of what is typed."""
        self.type("jobs\r")
        while "topped" not in (found := self.wait_for(r"jobs.*?\[1\].*?[$#] ")):
            assert "chat" in found
            self.type("jobs\r")

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def ends_input(self) -> bool:
        """Whether the terminal knows Ctrl-D."""
        return termios.tcgetattr(self._terminal)[6][termios.VEOF] == b"\x04"

    def leave(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self._more(deadline):
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._terminal)

    def _more(self, deadline: float) -> bool:
        """Whether anything has come; False at the end, and when patience is."""
        if not is_readable(self._terminal, max(0, deadline - time.monotonic())):
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return False
        self.output += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode())
        return bool(data)


Sit = Callable[..., Sitting]


@pytest.fixture
def sitting(tmp_path: Path) -> Iterator[Sit]:
    """Makes chats with a server; they end with the test."""
    made: list[Sitting] = []
    with serving() as url:

        def sit(*words: str, **how: Any) -> Sitting:
            made.append(Sitting("--url", url, *words, home=tmp_path, **how))
            return made[-1]

        yield sit
        for one in made:
            one.close()


def test_a_conversation(sitting: Sit) -> None:
    chat = sitting()
    chat.wait_for(r"/help shows commands.*>>> ")
    chat.type("hi\r")
    assert "Héllo" in chat.wait_for(r"7 tokens.*>>> ")
    chat.type("/clera\r")
    assert "did you mean /clear?" in " ".join(chat.wait_for(r"space.*>>> ").split())
    chat.type("two \\\r")
    chat.wait_for(r"\.\.\. ")
    chat.type("lines\r")
    chat.wait_for(r"7 tokens.*>>> ")
    assert Handler.seen[-1]["messages"][-1]["content"] == "two \nlines"
    chat.type("\x03")
    chat.wait_for(r"Ctrl-D to leave.*>>> ")
    chat.type("/bye\r")
    assert chat.leave() == 0


def test_an_answer_is_stopped_with_ctrl_c(sitting: Sit) -> None:
    chat = sitting()
    chat.wait_for(">>> ")
    chat.type("slow\r")
    chat.wait_for("Wait")
    chat.type("\x03")
    chat.wait_for(r"\[stopped\].*>>> ")
    chat.type("hi\r")
    chat.wait_for(r"7 tokens.*>>> ")
    said = [message["content"] for message in Handler.seen[-1]["messages"]]
    assert said == ["slow", "Wait", "hi"]
    chat.type("/bye\r")
    assert chat.leave() == 0
    question = sitting("slow")
    question.wait_for("Wait")
    question.type("\x03")
    assert question.leave() == 130 and "Traceback" not in question.output


def test_what_is_typed_while_an_answer_comes_is_the_next_message(sitting: Sit) -> None:
    Handler.go_on.clear()
    chat = sitting()
    chat.wait_for(">>> ")
    chat.type("paced\r")
    chat.wait_for("First")
    assert not chat.echoes()
    chat.type("typed early\rand l")
    Handler.go_on.set()
    answer, _, rest = chat.wait_for("tokens").partition("second")
    assert "typed" not in answer and "First" not in rest
    chat.wait_for(r"7 tokens.*>>> .*and l")
    assert Handler.seen[-1]["messages"][-1]["content"] == "typed early"
    chat.type("ate\r")
    chat.wait_for(r"7 tokens.*>>> ")
    assert Handler.seen[-1]["messages"][-1]["content"] == "and late"
    chat.type("/bye\r")
    assert chat.leave() == 0


@pytest.mark.parametrize("words", [(), ("slow",)])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGQUIT, signal.SIGINT])
def test_the_terminal_echoes_again_however_an_answer_ends(
    sitting: Sit, words: tuple[str, ...], end: signal.Signals
) -> None:
    chat = sitting(*words)
    if not words:
        chat.wait_for(">>> ")
        chat.type("slow\r")
    chat.wait_for("Wait")
    assert not chat.echoes()
    os.kill(chat.process.pid, end)
    if end is signal.SIGINT and not words:
        chat.wait_for(r"\[stopped\].*>>> ")
        chat.type("/bye\r")
    code = chat.leave()
    assert chat.echoes()
    assert code == (-end if end is not signal.SIGINT else 130 if words else 0)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_echoes_again_however_a_prompt_ends(sitting: Sit, end: signal.Signals) -> None:
    chat = sitting()
    chat.wait_for(">>> ")
    assert not chat.echoes()  # readline does it
    os.kill(chat.process.pid, end)
    assert chat.leave() == -end
    assert chat.echoes()


def test_a_signal_that_comes_just_before_a_wait_is_felt() -> None:
    """Another thread gets it: Python knows of it, and the main thread waits on."""
    go = threading.Event()

    def interrupt() -> None:
        go.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begin = time.monotonic()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with wake_on_signals(), pytest.raises(KeyboardInterrupt):
            go.set()
            time.sleep(PATIENCE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        thread.join()
    assert time.monotonic() - begin < PATIENCE / 2


SHELLS = [path for name in ("dash", "bash", "zsh", "ksh") if (path := shutil.which(name))]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("background", [False, True])
def test_a_stopped_chat_leaves_the_terminal_to_the_shell_and_goes_on(
    sitting: Sit, shell: str, background: bool
) -> None:
    """Not every shell gives the terminal its modes back: dash does not."""
    chat = sitting(shell=shell)
    chat.wait_for(">>> ")
    for typed in ("", "h"):
        assert not chat.echoes()
        chat.type(typed)
        chat.wait_for(typed)
        chat.type("\x1a")
        chat.wait_for(r"Stopped.*[$#] ")
        chat.type("stty -a\r")
        modes = chat.wait_for(r"echoke.*[$#] ")
        assert not re.search(r"-(echo|icanon|icrnl|isig)\b", modes)
        if background:
            chat.type("bg\r")
            chat.wait_for(r"chat.*[$#] ")
            chat.stopped_in_background()
        chat.type("fg\r")
        chat.wait_for(f">>> {typed}")
    chat.type("i\r")
    chat.wait_for(r"7 tokens.*>>> ")
    assert Handler.seen[-1]["messages"][-1]["content"] == "hi"
    chat.type("/bye\r")
    chat.wait_for(r"[$#] ")


OUTDATED = """
import os
import signal

look = os.tcgetpgrp


def look_and_be_brought_back(terminal):
    found = look(terminal)
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(terminal, os.getpgrp())
    signal.signal(signal.SIGTTOU, before)
    return found


os.tcgetpgrp = look_and_be_brought_back
"""
"""a shell that brings this process to the foreground just when it has looked whether it is there"""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_chat_does_not_stop_where_it_has_the_terminal(
    sitting: Sit, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(OUTDATED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    chat = sitting(shell=shell)
    chat.wait_for(">>> ")
    chat.type("\x1a")
    chat.wait_for(r"Stopped.*[$#] ")
    chat.type("bg\r")
    chat.wait_for(r"chat.*[$#] ")
    chat.stopped_in_background()
    chat.type("fg\r")
    chat.wait_for(">>> ")


@pytest.mark.parametrize("shell", SHELLS)
def test_an_answer_that_ends_in_the_background_leaves_the_terminal_to_the_shell(
    sitting: Sit, shell: str
) -> None:
    Handler.go_on.clear()
    chat = sitting(shell=shell)
    chat.wait_for(">>> ")
    chat.type("paced\r")
    chat.wait_for("First")
    chat.type("\x1a")
    chat.wait_for(r"Stopped.*[$#] ")
    chat.type("bg\r")
    chat.wait_for(r"chat.*[$#] ")
    Handler.go_on.set()
    chat.stopped_in_background()
    chat.type("fg\r")
    chat.wait_for(r">>> ")
    chat.type("/bye\r")
    chat.wait_for(r"bye.*[$#] ")
    chat.type("stty -a\r")
    modes = chat.wait_for(r"echoke.*[$#] ")
    assert not re.search(r"-(echo|icanon|icrnl|isig)\b", modes)


@pytest.mark.parametrize("beside", [signal.SIGINT, signal.SIGURG])
def test_signals_that_come_together_are_all_felt(sitting: Sit, beside: signal.Signals) -> None:
    """One that raises must not meet another on its way: Python's `input` breaks."""
    chat = sitting()
    chat.wait_for(">>> ")
    chat.type("typed")
    chat.wait_for("typed")
    os.kill(chat.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, chat.process.pid, os.WSTOPPED)
    for number in (beside, signal.SIGCONT):
        os.kill(chat.process.pid, number)
    chat.wait_for(">>> ")
    if beside is not signal.SIGINT:
        chat.wait_for("typed")
    chat.type("more\r")
    chat.wait_for(r"7 tokens.*>>> ")
    expected = "more" if beside is signal.SIGINT else "typedmore"
    assert Handler.seen[-1]["messages"][-1]["content"] == expected
    chat.type("/bye\r")
    assert chat.leave() == 0


@pytest.mark.parametrize("typed", ["\x04", "hi\r\x04", "\x04\x04\x04"])
def test_ctrl_d_during_an_answer_leaves_the_chat_but_not_the_shell(
    sitting: Sit, typed: str
) -> None:
    Handler.go_on.clear()
    chat = sitting(shell=SHELLS[0])
    chat.wait_for(">>> ")
    chat.type("paced\r")
    chat.wait_for("First")
    chat.type(typed)
    Handler.go_on.set()
    chat.wait_for("second")
    if "hi" in typed:
        chat.wait_for("7 tokens")
    chat.wait_for(r">>> [^>]*[$#] ")
    chat.type("echo still $((40 + 2))\r")
    chat.wait_for("still 42")


def test_ctrl_d_during_the_only_answer_is_as_ever(sitting: Sit) -> None:
    """Nobody here reads it, and the shell would end."""
    chat = sitting("slow")
    chat.wait_for("Wait")
    assert chat.ends_input()
    chat.type("\x03")
    assert chat.leave() == 130


def test_pasted_lines_are_one_message(sitting: Sit) -> None:
    chat = sitting()
    chat.wait_for(">>> ")
    chat.type("\x1b[200~one\rtwo\x1b[201~\r")
    chat.wait_for(r"7 tokens.*>>> ")
    assert Handler.seen[-1]["messages"][-1]["content"] == "one\ntwo"
    chat.type("/bye\r")
    assert chat.leave() == 0


def test_markdown_wraps_at_the_edge_of_the_terminal(sitting: Sit) -> None:
    for columns in (60, 100):
        chat = sitting("markdown", columns=columns)
        assert chat.leave() == 0
        lines = [line.strip() for line in re.split(r"[\r\n]+", chat.output)]
        assert "Gravity" in lines and "**" not in chat.output
        assert all(len(line) < columns for line in lines)
        words = {word for line in lines for word in line.split()} - {""}
        # While a line grows its last word may stand there in part, but no word goes over the edge.
        full = [line for line in lines if line.endswith(("pulls", "things", "together"))]
        assert max(map(len, full)) > columns - 12 and "•" in words
    plain = sitting("markdown", "--plain")
    assert plain.leave() == 0 and "**force**" in plain.output


def test_what_was_typed_is_there_in_the_next_session(sitting: Sit, tmp_path: Path) -> None:
    chat = sitting()
    chat.wait_for(">>> ")
    chat.type("remember me\r")
    chat.wait_for(r"7 tokens.*>>> ")
    chat.type("\x04")
    assert chat.leave() == 0
    assert chat.output.endswith("\n")
    file = tmp_path / "vivace" / "chat_history"
    assert file.read_text() == '"remember me"\n' and file.stat().st_mode & 0o777 == 0o600
    chat = sitting()
    chat.wait_for(">>> ")
    chat.type("\x1b[A")
    chat.wait_for("remember me")
    chat.type("\r")
    chat.wait_for(r"7 tokens.*>>> ")
    assert Handler.seen[-1]["messages"][-1]["content"] == "remember me"
    chat.type("/bye\r")
    assert chat.leave() == 0
    chat = sitting("--no-history")
    chat.wait_for(">>> ")
    chat.type("forget me\r")
    chat.wait_for(r"7 tokens.*>>> ")
    chat.type("/bye\r")
    assert chat.leave() == 0 and "forget" not in file.read_text()
