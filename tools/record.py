"""Types a list of commands into shells on a terminal; keeps what is seen, with times, as asciicast.

    python3 tools/record.py docs/recordings/first-minutes.txt docs/recordings/first-minutes.cast

A line of the list is `TERMINAL: WORDS`: typed there, and the next one when its prompt is back; with
` => PATTERN` behind, when that is on the screen. `^C` and `^D` are keys. Needs bash.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

COLUMNS, ROWS = 80, 24
LIMIT = 2400.0
"""seconds that one line may take"""
STEP = 1.0
"""seconds of output in one event"""
MARK = "\x1b]133;A\x07"
"""begins each prompt (OSC 133); not kept"""
HALF_MARKS = [MARK[:length] for length in range(1, len(MARK))]
SETTINGS = (
    rf" PS1='\[\e]133;A\a\]\$ '; bind 'set enable-bracketed-paste off'; HISTFILE={os.devnull}"
)
COLORS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
UNSEEN = re.compile(r"\r\x1b\[2K[^\n]*(?=\r\x1b\[2K)")
"""a line that is drawn and erased within one event"""
KEYS = {"^C": "\x03", "^D": "\x04"}
LINE = re.compile(r"(\w+): (.*?)(?: => (.*))?")


class Cast:
    """What one screen shows."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []
        self._start = time.monotonic()

    def write(self, text: str) -> None:
        now = time.monotonic() - self._start
        if self.events and now - self.events[-1][0] < STEP:
            now, text = self.events[-1][0], self.events.pop()[1] + text
        if text:
            self.events.append((now, UNSEEN.sub("", text)))

    def save(self, path: Path) -> None:
        head = {"version": 2, "width": COLUMNS, "height": ROWS, "idle_time_limit": 1.5}
        rows = [
            json.dumps(head),
            *(json.dumps([round(at, 2), "o", text]) for at, text in self.events),
        ]
        path.write_text("\n".join(rows) + "\n")


class Shell:
    """bash on a terminal of its own. What it says while another one is typed into is not kept."""

    open: list[int] = []

    def __init__(self, cast: Cast) -> None:
        self._cast, self._prompt = cast, ""
        child, self._file = pty.fork()
        if child == 0:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)  # nohup and & have them ignored
            os.environ["TERM"] = "xterm-256color"
            os.execvp("bash", ["bash", "--norc", "-i"])
        self.open.append(self._file)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        for words in (SETTINGS, "clear"):
            list(self._answer(words, None))

    def type(self, words: str, until: str | None) -> float:
        """Seconds until the prompt is back or `until` was seen. Raises TimeoutError."""
        start = time.monotonic()
        self._cast.write(self._prompt)
        for text in self._answer(words, until):
            self._cast.write(text)
        return time.monotonic() - start

    def _answer(self, words: str, until: str | None) -> Iterator[str]:
        self._prompt, seen, deadline = "", "", time.monotonic() + LIMIT
        os.write(self._file, (KEYS.get(words) or words + "\r").encode())
        while until is None or not re.search(until, COLORS.sub("", seen).partition("\n")[2]):
            text, mark, prompt = self._read(deadline).partition(MARK)
            seen += text
            yield text
            if mark:
                self._prompt = prompt
                while select.select([self._file], [], [], 0.1)[0]:
                    self._prompt += self._read(deadline)
                return

    def _read(self, deadline: float) -> str:
        data = b""
        while True:
            ready = select.select(self.open, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                raise TimeoutError
            for file in ready:
                read = os.read(file, 1 << 16)
                data += read if file == self._file else b""
            with contextlib.suppress(UnicodeDecodeError):  # half a character
                text = data.decode()
                if text and not any(map(text.endswith, HALF_MARKS)):
                    return text


def main(listing: str, target: str) -> None:
    cast = Cast()
    try:
        play(Path(listing).read_text().splitlines(), cast)
    finally:
        cast.save(Path(target))


def play(lines: list[str], cast: Cast) -> None:
    shells: dict[str, Shell] = {}
    current = ""
    for line in lines:
        found = LINE.fullmatch(line)
        if found is None:  # empty, or a remark
            continue
        name, words, until = found.groups()
        if current not in ("", name):
            cast.write(f"\r\n\x1b[2m{f' {name} ':─^{COLUMNS}}\x1b[0m\r\n")
        if name not in shells:
            shells[name] = Shell(cast)
        current, seconds = name, shells[name].type(words, until)
        print(f"{seconds:8.1f} s  {name}: {words}", flush=True)
        if seconds >= 0.5:
            cast.write(f"\x1b[2m[{seconds:.1f} s]\x1b[0m\r\n")
        time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
